"""Refusal of objects with a name given twice: JSON does not define which value counts.

Payloads are left out here, and looked at one by one (`payloads.py`).
"""

import json
import re
from collections.abc import Iterable
from hashlib import blake2b

from msgspec import Raw

_SMALL = 4096
_MOST_SEEN = 512
# Without escapes, a text that a colon follows is a name (or looks like one inside another text:
# then the plain pass decides).
_NAMES = re.compile(rb'"([^"]*)"[ \t\r\n]*:')


class DuplicateNameError(ValueError):
    """An object has this name twice."""


def check_unique_names(body: bytes, payloads: Iterable[Raw]) -> None:
    """Raise DuplicateNameError if an object of a body, which is valid JSON, has a name twice.

    The decoder of typed values does not tell, hence a second, plain pass. The payloads, in the
    order of the body, are cut out first, which keeps it short. Where all names of the rest differ,
    as in most small ones, no object has one twice.
    """
    rest = without_payloads(body, payloads)
    if len(rest) > _SMALL or not _all_differ(rest):
        refuse_duplicates(rest)


def refuse_duplicates(text: bytes) -> None:
    """Raise DuplicateNameError if an object of valid JSON has a name twice: the slow pass."""
    _DECODER.decode(text.decode("utf-8"))


_seen: dict[bytes, bool] = {}


def _all_differ(text: bytes) -> bool:
    """Whether all names in a text differ, whatever their objects; False also if that is unclear.

    Results are cached, as the same text often comes with other payloads: by the digest, because
    there may be a secret in the text.
    """
    digest = blake2b(text, digest_size=32).digest()
    found = _seen.get(digest)
    if found is None:
        if len(_seen) >= _MOST_SEEN:
            _seen.clear()
        names = _NAMES.findall(text)
        found = _seen[digest] = b"\\" not in text and len(set(names)) == len(names)
    return found


def without_payloads(body: bytes, payloads: Iterable[Raw]) -> bytes:
    """Return the body with a number in place of each payload."""
    pieces: list[bytes] = []
    start = 0
    for payload in payloads:
        text = bytes(payload)
        if text[0] not in b"{[" or len(text) == 2:
            # A plain or empty value holds no names, and its few bytes may be found anywhere; the
            # default payload is not even in the body, and each search for it would read to the end.
            continue
        found = body.find(text, start)
        if found < 0:
            continue
        pieces += (body[start:found], b"0")
        start = found + len(text)
    pieces.append(body[start:])
    return b"".join(pieces)


def _check_pairs(pairs: list[tuple[str, object]]) -> None:
    if len(dict(pairs)) == len(pairs):
        return
    seen: set[str] = set()
    for name, _value in pairs:
        if name in seen:
            raise DuplicateNameError(f"the name {name[:100]!r} is given twice")
        seen.add(name)


# Numbers stay text: converting one of a million digits would take its time.
_DECODER = json.JSONDecoder(object_pairs_hook=_check_pairs, parse_int=str, parse_float=str)
