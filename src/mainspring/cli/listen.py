"""`mainspring listen`: a receiver for development that prints, verifies and fails on demand."""

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

import typer

from mainspring.clock import wall_clock
from mainspring.errors import ConfigError
from mainspring.sdk.webhooks import verify

_LONGEST_BODY = 64 * 2**20
_HOST = "127.0.0.1"
_SHOWN = 2000
_SHOWN_HEADERS = (
    "webhook-id",
    "x-mainspring-attempt",
    "x-mainspring-fence",
    "x-mainspring-scheduled-at",
)


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Options of the receiver."""

    secret: str | None = None
    fail: int = 0
    """Number of requests that are answered with 503 before the others are served."""
    status: int = 200
    delay: float = 0.0
    stop: threading.Event = field(default_factory=threading.Event)


def listen(port: int, behaviour: Behaviour) -> None:
    """Answer until Ctrl-C."""
    with _server(port, behaviour) as server:
        typer.echo(f"listening on http://{_HOST}:{server.server_address[1]} (Ctrl-C stops it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            behaviour.stop.set()


def _server(port: int, behaviour: Behaviour) -> ThreadingHTTPServer:
    try:
        return ThreadingHTTPServer((_HOST, port), _handler(behaviour))
    except OSError as problem:
        told = f"cannot listen on {_HOST} port {port}: {problem.strerror}"
        raise ConfigError([told]) from problem


def _handler(behaviour: Behaviour) -> type[BaseHTTPRequestHandler]:
    numbers = count(1)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            number = next(numbers)
            size = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(min(size, _LONGEST_BODY))
            status = 503 if number <= behaviour.fail else behaviour.status
            typer.echo(_describe(number, self, body, behaviour.secret, status))
            behaviour.stop.wait(behaviour.delay)
            answer = b'{"received": true}' if status < 400 else b'{"received": false}'
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = handle_any  # noqa: N815

        def log_message(self, format: str, *arguments: object) -> None:
            """Print nothing: each request is printed above."""

    return Handler


def _describe(
    number: int, request: BaseHTTPRequestHandler, body: bytes, secret: str | None, status: int
) -> str:
    headers = dict(request.headers.items())
    lower = {name.lower(): value for name, value in headers.items()}
    lines = [f"#{number} {request.command} {request.path} → {status}"]
    lines += [f"    {name}: {lower[name]}" for name in _SHOWN_HEADERS if name in lower]
    lines.append(f"    signature: {_signature(secret, headers, body)}")
    text = body[:_SHOWN].decode("utf-8", "replace") + ("…" if len(body) > _SHOWN else "")
    lines.append(f"    {text}")
    return "\n".join(_printable(line) for line in lines)


def _signature(secret: str | None, headers: dict[str, str], body: bytes) -> str:
    if not any(name.lower() == "webhook-signature" for name in headers):
        return "none (make a secret with POST /v1/secrets)"
    if secret is None:
        return "not checked (give the secret with --secret)"
    return "valid" if verify(secret, headers, body, wall_clock()) else "INVALID"


def _printable(line: str) -> str:
    """Whatever a sender puts into a header must not steer the terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in line)
