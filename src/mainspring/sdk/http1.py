"""HTTP/1.1 for both transports of the SDK: requests as bytes, and readers that are fed with bytes.

A proxy is passed by a tunnel (CONNECT), also for plain HTTP: so there is one way to send a request.
"""

from base64 import b64encode
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import httptools

MAX_RESPONSE = 256 * 2**20


class Request(NamedTuple):
    """A request to send. The path includes its query."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


class Response(NamedTuple):
    """A complete response. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Origin(NamedTuple):
    """Scheme, host and port of the API, and the prefix of all its paths."""

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


def encode_request(origin: Origin, request: Request) -> bytes:
    """Return the bytes of a request."""
    headers = dict(request.headers)
    if request.body or request.method not in ("GET", "DELETE"):
        headers["Content-Length"] = str(len(request.body))
    path = f"{origin.prefix}{request.path}"
    return encode_head(request.method, path, origin, headers) + request.body


def encode_head(method: str, path: str, origin: Origin, headers: Mapping[str, str]) -> bytes:
    """Return the bytes of a request line and its headers."""
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {origin.authority}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header or a path contains a line break")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


class ResponseReader:
    """One response, read from bytes as they arrive."""

    def __init__(self) -> None:
        self.done = False
        self.reusable = False
        """Whether the connection can carry another request."""
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._status = 0
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Take the next bytes. Raise EOFError for none (the connection was closed too soon),
        OSError for what is not HTTP or too large."""
        if not data:
            raise EOFError("the connection was closed before the answer was complete")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as problem:
            raise OSError(f"the answer is not HTTP: {problem}") from None
        if len(self._body) > MAX_RESPONSE:
            raise OSError("the answer is too large")

    def response(self) -> Response:
        return Response(self._status, self._headers, bytes(self._body))

    # Callbacks of the parser -----------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        # An interim response (1xx) is followed by the real one.
        self.done = self._status >= 200
        self.reusable = self.done and bool(self._parser.should_keep_alive())


class Proxy(NamedTuple):
    """Address of a proxy, and the credentials it requires."""

    host: str
    port: int
    credentials: str | None

    @classmethod
    def of(cls, url: str) -> "Proxy":
        """Parse `http://host:port` or `http://user:password@host:port`; errors do not repeat it."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme != "http" or not parts.hostname or not port:
            raise ValueError("write it as http://host:port or http://user:password@host:port")
        credentials = None
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            credentials = b64encode(login.encode()).decode("ascii")
        return cls(parts.hostname, port, credentials)

    def connect_request(self, origin: Origin) -> bytes:
        """Return the request for a tunnel to an origin."""
        headers = {}
        if self.credentials is not None:
            headers["Proxy-Authorization"] = f"Basic {self.credentials}"
        return encode_head("CONNECT", origin.authority, origin, headers)


class TunnelReader(ResponseReader):
    """The proxy's response to CONNECT. All bytes after its headers belong to the tunnel."""

    def check(self) -> None:
        """Raise OSError unless the tunnel is open."""
        status = self.response().status
        if not 200 <= status < 300:
            why = "it wants a user and a password that it knows" if status == 407 else "see its log"
            raise OSError(f"the proxy opened no tunnel: it answered {status} ({why})")

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self.done = self.response().status >= 200
