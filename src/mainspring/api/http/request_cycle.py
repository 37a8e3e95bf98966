"""The cycle of a request and its answer on a connection."""

from collections import deque
from typing import Any

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from mainspring.api.http.draining import Draining


class Cycle(RequestResponseCycle):
    """A request and its answer, which is written at once: uvicorn would write it in two parts."""

    draining: Draining
    behind: deque[Any]
    """The requests on the connection that wait for this one."""

    async def answer(self, response: Response) -> None:
        """Send a whole answer."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        self.answer_now(response)

    def answer_now(self, response: Response) -> None:
        """Send a whole answer without waiting for earlier bytes to be sent."""
        if self.disconnected or self.transport.is_closing():
            self.disconnected = True
            return
        self._end_if_draining()
        self.response_started = True
        self.waiting_for_100_continue = False
        self.transport.write(self._bytes_of(response))
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    async def send(self, message: Any) -> None:
        if not self.response_started:
            self._end_if_draining()
        await super().send(message)

    def _end_if_draining(self) -> None:
        if self.draining.began and not self.behind:
            self.keep_alive = False

    def _bytes_of(self, response: Response) -> bytes:
        headers = [*self.default_headers, *response.raw_headers]
        if not self.keep_alive:
            headers = [header for header in headers if header[0] != b"connection"]
            headers.append((b"connection", b"close"))
        elif (b"connection", b"close") in headers:
            self.keep_alive = False
        head = b"\r\n".join([b"%b: %b" % header for header in headers])
        if head.count(b"\n") + head.count(b"\r") != 2 * len(headers) - 2:
            raise RuntimeError("a header of an answer has a line break in it")
        body = b"" if self.scope["method"] == "HEAD" else bytes(response.body)
        return b"%b%b\r\n\r\n%b" % (STATUS_LINE[response.status_code], head, body)


def closing_bytes(response: Response) -> bytes:
    """Return the bytes of a whole answer after which the connection is closed."""
    headers = [(n, v) for n, v in response.raw_headers if n != b"connection"]
    headers.append((b"connection", b"close"))
    head = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return STATUS_LINE[response.status_code] + head + b"\r\n" + bytes(response.body)
