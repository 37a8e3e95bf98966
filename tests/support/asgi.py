"""A client that calls an ASGI application in this process, without a socket."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import msgspec
from starlette.types import ASGIApp, Message


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    def pointers(self) -> list[str]:
        """Where a problem document says that something is wrong."""
        return [error["pointer"] for error in self.json()["errors"]]


class AsgiClient:
    """Sends requests with the same key each time; headers of a call win."""

    def __init__(self, app: ASGIApp, key: str | None = None) -> None:
        self._app = app
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    async def get(self, url: str, **headers: str) -> Answer:
        return await self.call("GET", url, headers=headers)

    async def all_items(self, url: str) -> list[dict[str, Any]]:
        """Return the items of all pages of a list; the URL has a query."""
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            page = (await self.get(url + cursor)).json()
            found += page["items"]
            if page["next_cursor"] is None:
                return found
            cursor = f"&cursor={page['next_cursor']}"

    async def post(self, url: str, body: object = b"", **headers: str) -> Answer:
        return await self.call("POST", url, body, headers=headers)

    async def call(
        self,
        method: str,
        url: str,
        body: object = b"",
        *,
        headers: Mapping[str, str] | None = None,
        chunks: Sequence[bytes] | None = None,
    ) -> Answer:
        """`chunks` sends a body without a declared length; a body that is no bytes goes as JSON."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        named = {k.lower().replace("_", "-"): v for k, v in (headers or {}).items()}
        sent = {**self._headers, **named}
        if chunks is None:
            sent.setdefault("content-length", str(len(data)))
        exchange = _Exchange([data] if chunks is None else list(chunks))
        await self._app(_scope(method, url, sent), exchange.receive, exchange.send)
        return exchange.answer()


class _Exchange:
    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks
        self._start: Message = {}
        self._body = b""

    async def receive(self) -> Message:
        chunk = self._chunks.pop(0)
        return {"type": "http.request", "body": chunk, "more_body": bool(self._chunks)}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
        else:
            self._body += message.get("body", b"")

    def answer(self) -> Answer:
        headers = {k.decode().lower(): v.decode("latin-1") for k, v in self._start["headers"]}
        return Answer(self._start["status"], headers, self._body)


def _scope(method: str, url: str, headers: Mapping[str, str]) -> dict[str, Any]:
    path, _, query = url.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(k.encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 7070),
    }
