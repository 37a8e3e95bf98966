"""The bytes of a request."""

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message


async def read_body(request: Request) -> bytes:
    """The whole body: once, and with less ceremony than Starlette's own."""
    chunks: list[bytes] = []
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def with_body(request: Request, body: bytes) -> Request:
    """Return the same request with its body, which was read, to be read once more. After the body
    comes what comes from the client: nothing, until it disconnects."""
    unread = True

    async def receive() -> Message:
        nonlocal unread
        if not unread:
            return await request.receive()
        unread = False
        return {"type": "http.request", "body": body, "more_body": False}

    return Request(request.scope, receive)
