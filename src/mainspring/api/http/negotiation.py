"""Rules for a request before its body is read: media types and parameters.

The documentation of an operation names the forms it reads (415) and answers in (406), and its
parameters: one that is misspelt must not be taken for none (422).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import get_origin
from urllib.parse import parse_qsl

from mainspring.api.http.problems import below
from mainspring.api.openapi.operation import JSON, Doc
from mainspring.errors import InvalidRequest, NotAcceptable, Problem, UnsupportedMediaType

_MOST_PARAMETERS = 200
_CURLS_DEFAULT = b"application/x-www-form-urlencoded"


class RequestRules:
    """The rules for requests of one operation, taken from its documentation."""

    __slots__ = ("_consumes", "_in_any_case", "_known", "_produces", "_repeatable")

    def __init__(self, doc: Doc, *, in_any_case: bool = False) -> None:
        """`in_any_case`: Accept is ignored, as probes may send anything."""
        self._in_any_case = in_any_case
        consumed = () if doc.body is None else (JSON,)
        self._consumes = frozenset([*consumed, *doc.also_consumes])
        produced = {reply.media_type for reply in doc.replies if reply.type is not None}
        self._produces = frozenset(produced or {JSON})
        query = [param for param in doc.params if param.where == "query"]
        self._known = frozenset(param.name for param in query)
        self._repeatable = frozenset(p.name for p in query if get_origin(p.type) is list)

    def check(self, headers: dict[bytes, bytes], query: bytes) -> None:
        """Refuse a request that cannot be answered, before it changes anything."""
        accept = headers.get(b"accept") or b"*/*"
        if accept != b"*/*" and not self._in_any_case and not _accepts(accept, self._produces):
            raise NotAcceptable(f"this answers in {' or '.join(sorted(self._produces))} only")
        if self._consumes:
            self._check_form(headers)
        if query:
            self._check_query(query)

    def _check_form(self, headers: dict[bytes, bytes]) -> None:
        kind = headers.get(b"content-type", _CURLS_DEFAULT)
        # Without a Content-Type, or with the one that curl sends for `-d`, the body is JSON:
        # nothing else is likely, and it is checked anyway.
        if kind != _CURLS_DEFAULT and not _is_one_of(kind, self._consumes):
            raise UnsupportedMediaType(
                f"send the body as {' or '.join(sorted(self._consumes))}, in UTF-8"
            )
        if headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
            raise UnsupportedMediaType("send the body as it is, without a Content-Encoding")

    def _check_query(self, query: bytes) -> None:
        try:
            pairs = parse_qsl(
                query.decode("latin-1"), keep_blank_values=True, max_num_fields=_MOST_PARAMETERS
            )
        except ValueError:
            raise InvalidRequest(f"more than {_MOST_PARAMETERS} query parameters") from None
        problems = []
        for name, count in Counter(name for name, _value in pairs).items():
            pointer = below("/query", name[:100])
            if name not in self._known:
                problems.append(Problem(pointer, "is not a parameter of this operation"))
            elif count > 1 and name not in self._repeatable:
                problems.append(Problem(pointer, "is given more than once"))
        if problems:
            raise InvalidRequest("some query parameters do not make sense", problems)


@lru_cache(256)
def _is_one_of(content_type: bytes, known: Collection[str]) -> bool:
    kind, *parameters = content_type.decode("latin-1").lower().split(";")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip(' "') not in ("utf-8", "utf8", "us-ascii"):
            return False
    kind = kind.strip()
    # Any kind of JSON document is one: application/merge-patch+json, for example.
    is_json = kind.startswith("application/") and kind.endswith("+json")
    return kind in known or (JSON in known and is_json)


@lru_cache(256)
def _accepts(accept: bytes, produced: Collection[str]) -> bool:
    refused: set[str] = set()
    ranges: set[str] = set()
    for part in accept.decode("latin-1").lower().split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        zero = any(p.replace(" ", "") in ("q=0", "q=0.0", "q=0.00", "q=0.000") for p in parameters)
        (refused if zero else ranges).add(name)
    return any(
        kind not in refused and bool(ranges & {kind, kind.partition("/")[0] + "/*", "*/*"})
        for kind in produced
    )


def preferred(accept: str, kinds: Sequence[str]) -> str:
    """Return the one of these media types that a caller likes best; the first of equals."""
    weights: dict[str, float] = {}
    for part in accept.lower().split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        weights[name] = max(weights.get(name, 0.0), _weight(parameters))

    def weight(kind: str) -> float:
        ranges = (kind, kind.partition("/")[0] + "/*", "*/*")
        return next((weights[name] for name in ranges if name in weights), 0.0)

    return max(kinds, key=weight)


def _weight(parameters: Iterable[str]) -> float:
    given = (p.partition("=")[2] for p in parameters if p.replace(" ", "").startswith("q="))
    try:
        return min(float(next(given, "1")), 1.0)
    except ValueError:
        return 1.0
