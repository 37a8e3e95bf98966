"""Access to the API through an HTTP proxy: by a tunnel (CONNECT), also for plain HTTP.

So there is one way to send a request, and the proxy need not understand what passes.
"""

from base64 import b64encode
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from mainspring.sdk.http1 import Origin, ResponseReader, encode_head


class Proxy(NamedTuple):
    """Address of a proxy, and the credentials it requires."""

    host: str
    port: int
    credentials: str | None

    @classmethod
    def of(cls, url: str) -> "Proxy":
        """Parse `http://host:port` or `http://user:password@host:port`. The URL may hold a
        password: the error does not repeat it."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme != "http" or not parts.hostname or not port:
            raise ValueError("write it as http://host:port or http://user:password@host:port")
        credentials = None
        if parts.username is not None:
            named = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            credentials = b64encode(named.encode()).decode("ascii")
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
