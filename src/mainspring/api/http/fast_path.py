"""The fast path: requests that are served at once, without a parser or a task of their own.

Under load nearly all requests are alike: plain creates over connections that send the same head
again and again. How such a head is served is worked out once, and from then on only the body is
read. The parser, the task, the request object and the ten coroutines of the full path cost more
than the work itself.

The fast path is for what succeeds. A request with anything unusual (a key to look up, a mistake in
the body, a limit that is reached) is declined before it has any effect; the same bytes then take
the full path, which alone can refuse.
"""

import asyncio
from collections.abc import Callable
from hashlib import blake2b
from typing import NamedTuple, Protocol

from starlette.responses import Response
from starlette.types import Scope

_POST = b"POST "
_END = b"\r\n\r\n"
_MOST_KNOWN = 1024


class PendingResponse(NamedTuple):
    """An answer that is under way: `answer` makes it, or raises, once `done` is."""

    done: "asyncio.Future[bool]"
    answer: Callable[[], Response]


Headers = list[tuple[bytes, bytes]]

FastHandler = Callable[[bytes], tuple[PendingResponse, Headers] | None]
"""Serves a request, given its body; the headers are for its answer. Returning None or raising
declines it."""


class ResponseSink(Protocol):
    """Where an answer goes."""

    def answer_now(self, response: Response) -> None: ...


ServeFast = Callable[[bytes, ResponseSink], bool]
"""Serves a request, given its body, and answers it in a later turn of the loop; False: it was
declined, and nothing happened."""


CompileFastPath = Callable[[Scope], ServeFast | None]
"""Returns how requests with this head are served; None if only on the full path."""


class HeaderCache:
    """Heads that were seen before, by their digest (they hold API keys), and how to serve each."""

    def __init__(self, compile_fast_path: CompileFastPath | None) -> None:
        self._compile = compile_fast_path
        self._known: dict[bytes, tuple[int, ServeFast]] = {}
        """By the digest of a head: the length of its body, and how to serve it."""

    def find(self, data: bytes) -> tuple[ServeFast, bytes] | None:
        """Return how to serve this data and its body if it is a whole request with a known head."""
        if not self._known or not data.startswith(_POST):
            return None
        head, body = _parts(data)
        length, serve = self._known.get(blake2b(head).digest(), (-1, None))
        return (serve, body) if serve is not None and len(body) == length else None

    def note(self, data: bytes, scope: Scope) -> None:
        """Remember the head of one whole request, which the parser read as this scope."""
        serve = self._compile(scope) if self._compile else None
        if serve is None:
            return
        head, body = _parts(data)
        if (b"content-length", b"%d" % len(body)) in scope["headers"]:
            digest = blake2b(head).digest()
            self._known.pop(digest, None)
            if len(self._known) >= _MOST_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[digest] = (len(body), serve)


def _parts(data: bytes) -> tuple[bytes, bytes]:
    end = data.find(_END) + len(_END)
    return data[:end], data[end:]
