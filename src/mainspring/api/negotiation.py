"""Forms of bodies: which a request may come in (415), and which its answer may have (406)."""

from collections.abc import Collection
from functools import lru_cache

from mainspring.api.documentation import JSON, Doc
from mainspring.errors import NotAcceptable, UnsupportedMediaType

Headers = dict[bytes, bytes]


class Negotiation:
    """The forms one operation reads and answers in, as its documentation names them."""

    __slots__ = ("_consumes", "_produces")

    def __init__(self, doc: Doc) -> None:
        self._consumes = frozenset(body.media_type for body in doc.bodies)
        produced = {reply.media_type for reply in doc.replies if reply.type is not None}
        self._produces = frozenset(produced or {JSON})

    def check(self, headers: Headers) -> None:
        """Before anything else is done: a request that cannot be answered shall change nothing."""
        accept = headers.get(b"accept")
        if accept is not None and accept != b"*/*" and not _accepts(accept, self._produces):
            raise NotAcceptable(f"this answers in {' or '.join(sorted(self._produces))} only")
        if not self._consumes:
            return
        kind = headers.get(b"content-type")
        # Who does not say sends JSON: nothing else is likely, and the body is checked anyway.
        if kind is not None and not _is_one_of(kind, self._consumes):
            raise UnsupportedMediaType(
                f"send the body as {' or '.join(sorted(self._consumes))}, in UTF-8"
            )
        if headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
            raise UnsupportedMediaType("send the body as it is, without a Content-Encoding")


@lru_cache(256)
def _is_one_of(content_type: bytes, known: Collection[str]) -> bool:
    kind, *parameters = content_type.decode("latin-1").lower().split(";")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip(' "') not in ("utf-8", "utf8", "us-ascii"):
            return False
    kind = kind.strip()
    return kind in known or (JSON in known and _is_json(kind))


def _is_json(kind: str) -> bool:
    """Any kind of JSON document is one: application/merge-patch+json, for example."""
    return kind.startswith("application/") and kind.endswith("+json")


@lru_cache(256)
def _accepts(accept: bytes, produced: Collection[str]) -> bool:
    refused: set[str] = set()
    ranges: set[str] = set()
    for part in accept.decode("latin-1").lower().split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        zero = any(p.replace(" ", "") in ("q=0", "q=0.0", "q=0.00", "q=0.000") for p in parameters)
        (refused if zero else ranges).add(name)
    return any(
        kind not in refused and ranges & {kind, kind.partition("/")[0] + "/*", "*/*"}
        for kind in produced
    )
