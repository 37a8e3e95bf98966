"""The API's description of itself: /openapi.json for programs, /docs for people."""

from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import Annotated

import msgspec
from msgspec import Meta, Raw
from starlette.requests import Request
from starlette.responses import Response

from mainspring import __version__
from mainspring.api.http.operations import OpenOperation, Operation
from mainspring.api.openapi.document import Paths, describe
from mainspring.api.openapi.operation import ETAG, IF_NONE_MATCH, Doc, ResponseDoc

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_ON_PAGES = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
# The document is too free in form to be a type of ours.
_Document = Annotated[dict[str, Raw], Meta(extra_json_schema={"required": ["openapi", "paths"]})]


def _doc(id: str, summary: str, reply: ResponseDoc) -> Doc:
    replies = [reply, ResponseDoc(304, "It has not changed.", headers=[ETAG])]
    return Doc(id=id, tag="Description", summary=summary, params=[IF_NONE_MATCH], replies=replies)


OPENAPI = _doc(
    "openapi",
    "Read the OpenAPI document",
    ResponseDoc(200, "This document.", _Document, headers=[ETAG]),
)


@dataclass(frozen=True, slots=True)
class _Fixed:
    """A response that stays the same while the process lives, with its ETag."""

    body: bytes
    media_type: str

    async def answer(self, request: Request) -> Response:
        tag = f'"{sha256(self.body).hexdigest()[:32]}"'
        headers = {**_ON_PAGES, "ETag": tag}
        known = request.headers.get("if-none-match", "")
        if tag in (one.strip().removeprefix("W/") for one in known.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(self.body, headers={**headers, "Content-Type": self.media_type})


def description_paths(paths: Paths) -> dict[str, dict[str, Operation]]:
    """Return the paths that describe these paths: the document, and pages that show it."""
    own = {
        "/docs": _asset("docs.html", "text/html", "docs", "Browse the documentation"),
        "/docs/docs.css": _asset("docs.css", "text/css", "docsStyle", "How the pages look"),
        "/docs/docs.js": _asset("docs.js", "text/javascript", "docsScript", "How the pages work"),
    }
    placeholder = OpenOperation(_Fixed(b"", "").answer, OPENAPI)
    everything = {**paths, "/openapi.json": {"GET": placeholder}, **own}
    document = msgspec.json.encode(describe(everything, __version__))
    fixed = _Fixed(document, "application/json")
    return {"/openapi.json": {"GET": OpenOperation(fixed.answer, OPENAPI)}, **own}


def _asset(name: str, media_type: str, id: str, summary: str) -> dict[str, Operation]:
    body = (files(__package__) / "pages" / name).read_bytes()
    fixed = _Fixed(body, f"{media_type}; charset=utf-8")
    page = ResponseDoc(200, "The page.", str, headers=[ETAG], media_type=media_type)
    return {"GET": OpenOperation(fixed.answer, _doc(id, summary, page))}
