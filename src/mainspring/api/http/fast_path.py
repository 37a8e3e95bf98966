"""The short way: requests that are served on the spot, without a parser or a task of their own.

Under load nearly all requests are alike: creates in their plainest form, over connections that send
the same head again and again. What such a head asks for is worked out once, and from then on only
the body is looked at. The parser, the task, the request object and the ten coroutines of the
ordinary way cost more than the work itself.

The short way is for what succeeds. A request about which anything is unusual (a key to look up, a
mistake in the body, a limit that is reached) is declined before it has any effect; the same bytes
then go the ordinary way, which alone knows how to refuse.
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
    """An answer that is under way: `answer` makes it, or raises, once `kept` is done."""

    kept: "asyncio.Future[bool]"
    answer: Callable[[], Response]


Headers = list[tuple[bytes, bytes]]

FastHandler = Callable[[bytes], tuple[PendingResponse, Headers] | None]
"""Serves a request, given its body; the headers are for its answer. To return None or to raise is
to decline it."""


class ResponseSink(Protocol):
    """Where an answer goes."""

    def answer_now(self, response: Response) -> None: ...


ServeFast = Callable[[bytes, ResponseSink], bool]
"""Serves a request, given its body, and answers it later, in another turn of the loop; False: it
was declined, and nothing happened."""


class FastPathCompiler(Protocol):
    """Who knows which heads can be served on the spot."""

    def compile_fast_path(self, scope: Scope) -> ServeFast | None:
        """How to serve requests with the head of this one; None: the ordinary way only."""


class _CachedHead(NamedTuple):
    length: int
    serve: ServeFast


class HeaderCache:
    """What is known of heads that were seen before.

    A head is known by its digest: it has a key in it, and of keys only hashes are kept.
    """

    def __init__(self, compiler: FastPathCompiler | None) -> None:
        self._compiler = compiler
        self._known: dict[bytes, _CachedHead] = {}

    def find(self, data: bytes) -> tuple[ServeFast, bytes] | None:
        """How to serve what arrived, and its body, if it is one whole request with a known head."""
        if not self._known or not data.startswith(_POST):
            return None
        head, body = _parts(data)
        known = self._known.get(blake2b(head).digest())
        return (known.serve, body) if known and len(body) == known.length else None

    def note(self, data: bytes, scope: Scope) -> None:
        """This is one whole request, which the parser understood like that."""
        serve = self._compiler.compile_fast_path(scope) if self._compiler else None
        if serve is None:
            return
        head, body = _parts(data)
        if (b"content-length", b"%d" % len(body)) in scope["headers"]:
            digest = blake2b(head).digest()
            self._known.pop(digest, None)
            if len(self._known) >= _MOST_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[digest] = _CachedHead(len(body), serve)


def _parts(data: bytes) -> tuple[bytes, bytes]:
    end = data.find(_END) + len(_END)
    return data[:end], data[end:]
