"""HTTP/1.1 as the SDK speaks it: requests as bytes, and answers read from bytes.

Both transports share this; httptools, which the server uses as well, does the parsing.
"""

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

import httptools

LARGEST_ANSWER = 256 * 2**20


class Request(NamedTuple):
    """What is sent. The path has its query."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


class Response(NamedTuple):
    """What came back. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Origin(NamedTuple):
    """Scheme, host and port, and the path before all paths."""

    tls: bool
    host: str
    port: int
    prefix: str

    @classmethod
    def of(cls, url: str) -> "Origin":
        parts = urlsplit(url)
        if not parts.hostname:
            raise ValueError(f"{url!r} names no host")
        tls = parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        return cls(tls, parts.hostname, port, parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def encoded(origin: Origin, request: Request) -> bytes:
    """The bytes of a request."""
    headers = dict(request.headers)
    if request.body or request.method not in ("GET", "DELETE"):
        headers["Content-Length"] = str(len(request.body))
    path = f"{origin.prefix}{request.path}"
    return head(request.method, path, origin, headers) + request.body


def head(method: str, path: str, origin: Origin, headers: Mapping[str, str]) -> bytes:
    """The request line and the headers."""
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {origin.authority}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header or a path contains a line break")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


class Answer:
    """One answer, fed with bytes as they arrive."""

    def __init__(self) -> None:
        self.done = False
        self.reusable = False
        """Whether the connection can carry another request."""
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._status = 0
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Take bytes; raises for what is not HTTP, or too much of it."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as problem:
            raise OSError(f"the answer is not HTTP: {problem}") from None
        if len(self._body) > LARGEST_ANSWER:
            raise OSError("the answer is too large")

    def response(self) -> Response:
        return Response(self._status, self._headers, bytes(self._body))

    # What the parser calls -------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        # An interim answer (1xx) is followed by the real one.
        self.done = self._status >= 200
        self.reusable = self.done and bool(self._parser.should_keep_alive())
