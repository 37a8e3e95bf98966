"""Bodies of requests and answers."""

from collections.abc import Mapping

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message

encode_json = msgspec.json.Encoder().encode


async def read_body(request: Request) -> bytes:
    """Return the whole body, which can be read once: faster than Starlette's own way."""
    chunks: list[bytes] = []
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def with_body(request: Request, body: bytes) -> Request:
    """Return the same request with its body, which was read, to be read once more."""
    unread = True

    async def receive() -> Message:
        nonlocal unread
        if not unread:
            return await request.receive()
        unread = False
        return {"type": "http.request", "body": body, "more_body": False}

    return Request(request.scope, receive)


def json_response(
    body: object, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return RawJsonResponse(encode_json(body), status, headers)


def secret_response(body: object, location: str | None = None) -> Response:
    """Return the answer 201 that shows a secret once; no cache on the way may store it."""
    headers = {"Cache-Control": "no-store"}
    if location is not None:
        headers["Location"] = location
    return json_response(body, 201, headers)


class RawJsonResponse(Response):
    """An answer whose JSON is encoded already, without the steps of Starlette's JSONResponse."""

    def __init__(
        self, body: bytes, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        self.status_code = status
        self.background = None
        self.body = body
        self.raw_headers = [
            (b"content-length", b"%d" % len(body)),
            (b"content-type", b"application/json"),
        ]
        if headers:
            self.raw_headers += [
                (name.lower().encode("latin-1"), value.encode("latin-1"))
                for name, value in headers.items()
            ]
