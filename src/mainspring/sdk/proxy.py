"""A way to the API through an HTTP proxy: a tunnel (CONNECT), in which all is said as without it.

Plain HTTP is tunnelled too: so there is one way, and the proxy need not understand what passes.
"""

from base64 import b64encode
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from mainspring.sdk.wire import Answer, Origin, head


class Proxy(NamedTuple):
    """Where the proxy is, and what it wants to hear before it lets anybody through."""

    host: str
    port: int
    credentials: str | None

    @classmethod
    def of(cls, url: str) -> "Proxy":
        """From `http://host:port` or `http://user:password@host:port`; the password may be secret,
        so what is wrong is told without the URL."""
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

    def opening(self, origin: Origin) -> bytes:
        """What opens a tunnel to an origin."""
        headers = {}
        if self.credentials is not None:
            headers["Proxy-Authorization"] = f"Basic {self.credentials}"
        return head("CONNECT", origin.authority, origin, headers)


class Opening(Answer):
    """What the proxy says to it. Whatever comes after the headers belongs to the tunnel."""

    def check(self) -> None:
        """Raises unless the tunnel is open."""
        status = self.response().status
        if not 200 <= status < 300:
            why = "it wants a user and a password that it knows" if status == 407 else "see its log"
            raise OSError(f"the proxy opened no tunnel: it answered {status} ({why})")

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self.done = self.response().status >= 200
