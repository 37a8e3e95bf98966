"""JSON that is the caller's own and kept as the bytes that came: looked at once, never changed.

It is passed on to receivers and workers in many languages and must mean the same to all of them:
no name twice in one object, no number that a reader cannot hold, no U+0000.
"""

import re
from collections.abc import Sequence

import msgspec

from mainspring.api.http.bodies import encode_json
from mainspring.api.http.duplicate_names import DuplicateNameError, refuse_duplicates
from mainspring.errors import Oversize, Problem

MOST_NESTING = 64

_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_ESCAPES = re.compile(rb"\\(?:u0000|.)", re.DOTALL)
_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_decode = msgspec.json.Decoder().decode


def payload_problems(payload: bytes, most_bytes: int) -> Sequence[Problem]:
    """Return the problems of JSON that receivers and workers shall read."""
    value, wrong = _read(payload, most_bytes)
    nul = b"\\u0000"
    if wrong is None and nul in payload and any(e[0] == nul for e in _ESCAPES.finditer(payload)):
        wrong = "contains U+0000, which not every reader can take"
    if wrong is None:
        wrong = _ambiguity(payload, value)
    return _problems(payload, most_bytes, wrong)


def result_problems(result: bytes, most_bytes: int) -> Sequence[Problem]:
    """Return the problems of a worker's result: only what makes it unreadable."""
    _value, wrong = _read(result, most_bytes)
    return _problems(result, most_bytes, wrong)


def nested_too_deeply(payload: bytes) -> bool:
    """Whether valid JSON is nested beyond the limit. Of its brackets alone, each pass removes the
    innermost pairs, and so one level: that is faster than a loop over the characters."""
    if payload.count(b"[") + payload.count(b"{") <= MOST_NESTING:
        return False
    brackets = _STRINGS.sub(b"", payload).translate(_TO_BRACKETS, _NOT_BRACKETS)
    for _level in range(MOST_NESTING):
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return False
    return True


def _read(payload: bytes, most_bytes: int) -> tuple[object, str | None]:
    """Return the value, or why it is refused."""
    if len(payload) > most_bytes:
        return None, f"has {len(payload)} bytes; the most is {most_bytes}"
    if nested_too_deeply(payload):
        return None, f"is nested more than {MOST_NESTING} levels deep"
    try:
        return _decode(payload), None
    except msgspec.DecodeError as error:
        return None, f"cannot be read: {error}"


def _ambiguity(payload: bytes, value: object) -> str | None:
    """Return the problem of a name that is given twice. Encoding the value again would lose one,
    with its colon: only if there are fewer colons then, the slow pass looks for the name."""
    colons = payload.count(b":")
    if colons < 2 or colons == encode_json(value).count(b":"):
        return None
    try:
        refuse_duplicates(payload)
    except DuplicateNameError as error:
        return str(error)
    return None


def _problems(payload: bytes, most_bytes: int, wrong: str | None) -> Sequence[Problem]:
    if wrong is None:
        return ()
    kind = Oversize if len(payload) > most_bytes else Problem
    return (kind("/payload", wrong),)
