"""Placeholders in the payload of a schedule's task: `{{scheduled_at}}`, `{{occurrence}}` and
`{{schedule_id}}`.

Only string values are touched, in place: every other byte of the payload stays as it was sent. A
string that is one placeholder and nothing else takes the placeholder's type; `\\{{` stands for two
braces that mean nothing.
"""

import json
import re
from collections.abc import Callable, Mapping

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"(?P<name>\s*:)?', re.DOTALL)
_PLACEHOLDER = re.compile(r"\\\{\{|\{\{\s*(\w+)\s*\}\}")

Values = Mapping[str, str | int]


def has_placeholders(payload: bytes) -> bool:
    """Whether expanding could change anything."""
    return b"{{" in payload or b"\\u007b" in payload.lower()


def expand(payload: bytes, values: Values) -> bytes:
    """The payload with its placeholders replaced; unknown ones stay as they are."""

    def change(text: str) -> bytes:
        whole = _PLACEHOLDER.fullmatch(text)
        if whole is not None and whole[1] in values:
            return json.dumps(values[whole[1]]).encode()
        return json.dumps(_PLACEHOLDER.sub(lambda m: _text(m, values), text)).encode()

    return rewrite(payload, change)


def rewrite(document: bytes, change: Callable[[str], bytes]) -> bytes:
    """Replace string values that may hold placeholders by their `change`; keep all other bytes."""

    def replace(match: re.Match[bytes]) -> bytes:
        token = match[0]
        if match["name"] is not None or not has_placeholders(token):
            return token
        return change(json.loads(token))

    return _STRING.sub(replace, document)


def _text(match: re.Match[str], values: Values) -> str:
    if match[1] is None:
        return "{{"
    return str(values.get(match[1], match[0]))
