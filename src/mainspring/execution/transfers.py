"""HTTP requests under way: libcurl's multi interface, and an epoll of our own over its sockets,
because pycurl's `select` ends at descriptor 1023.

What a hostile receiver may cost is bounded here: a total deadline, few header bytes, a capped body
that is never decompressed, no redirects, no proxies from the environment, and no address the egress
guard refuses, neither at connect nor on a kept connection.
"""

import os
import select
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple
from uuid import UUID

import pycurl

from mainspring.domain.webhook import TlsIdentity
from mainspring.execution.egress_guard import EgressRules

Key = tuple[UUID, int]
"""The key of an execution: the task's id and the fence."""

Trouble = Literal["timeout", "connection", "blocked", "bad-answer", "cancelled"]

_MOST_HEADER_BYTES = 32 * 1024
_MOST_IDLE_HANDLES = 512
_BUFFER = 16 * 1024
"""libcurl's own is 64 KiB for what is sent, and thousands of requests may be under way."""
_LARGEST_POOLED_BODY = 64 * 1024
_KINDS = {"GET": pycurl.HTTPGET, "HEAD": pycurl.NOBODY}
# pycurl has no names for CURLE_WEIRD_SERVER_REPLY and CURLE_TOO_LARGE.
_BAD_ANSWERS = (pycurl.E_UNSUPPORTED_PROTOCOL, pycurl.E_URL_MALFORMAT, 8, 100)
_EPOLL_IN, _EPOLL_OUT = 1, 4
_IN_ERROR = ~(_EPOLL_IN | _EPOLL_OUT)


class TransferRequest(NamedTuple):
    """One HTTP request, ready to go: headers are complete lines."""

    key: Key
    url: str
    method: str
    headers: list[bytes]
    body: bytes
    timeout: float
    egress: EgressRules
    tls: TlsIdentity | None = None


class TransferReply(NamedTuple):
    """The result of a request: a status and an answer, or a trouble and a sentence about it."""

    key: Key
    status: int = 0
    headers: Sequence[bytes] = ()
    body: bytes = b""
    truncated: bool = False
    trouble: Trouble | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class SenderSettings:
    """The sender's bounds."""

    max_response: int = 64 * 1024
    """Bytes of an answer's body that are kept."""
    read_limit: int = 1024 * 1024
    """Bytes of an answer's body that are read before the connection is cut."""
    connect_timeout: float = 10.0
    dns_cache: int = 60
    """Seconds that an answer of the name service is remembered."""
    idle_connections: int = 1024
    ca_file: str | None = None


class Transfers:
    """libcurl's multi handle and the descriptors it watches: for one thread alone."""

    def __init__(self, settings: SenderSettings, wake: int | None = None) -> None:
        self._settings = settings
        self._wake = wake
        self._poll = _Poll()
        if wake is not None:
            self._poll.set(wake, _EPOLL_IN)
        self._resting: set[int] = set()
        """Descriptors that epoll may still know, though nothing waits for them."""
        self._active: dict[Key, _Slot] = {}
        self._idle: dict[str, list[_Slot]] = {}
        self._ended: list[TransferReply] = []
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self._multi.setopt(pycurl.M_MAXCONNECTS, settings.idle_connections)

    def wait(self) -> bool:
        """Let libcurl work on what is ready, or will be; return whether it was woken."""
        rest = self.rest()
        return self._work(self._poll.wait(rest), rest)

    def work(self, most: int) -> None:
        """Let libcurl work on what is ready now, but on no more sockets than this."""
        self._work(self._poll.wait(0, most), self.rest())

    def rest(self) -> float | None:
        """Return the seconds until libcurl has something to do even if nothing arrives."""
        # Polled: a callback of libcurl would have to wait for the interpreter each time.
        milliseconds = self._multi.timeout()
        return None if milliseconds < 0 else milliseconds / 1000

    def fileno(self) -> int:
        """Return a descriptor that is readable while sockets are ready."""
        return self._poll.fileno()

    def _work(self, ready: list[tuple[int, int]], rest: float | None) -> bool:
        woken = False
        for fd, mask in ready:
            if fd == self._wake:
                woken = True
            elif fd in self._resting:
                self._resting.discard(fd)
                self._poll.unregister(fd)
            else:
                self._multi.socket_action(fd, _action(mask))
        if rest == 0 or not ready:
            self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        return woken

    def add(self, request: TransferRequest) -> None:
        kind = _kind(request.method)
        idle = self._idle.get(kind)
        slot = idle.pop() if idle and request.tls is None else _Slot(self._settings, kind)
        try:
            slot.prepare(request)
            self._multi.add_handle(slot.curl)
        except (pycurl.error, ValueError, TypeError, UnicodeError) as problem:
            text = f"the request cannot be sent: {type(problem).__name__}"
            self._ended.append(TransferReply(request.key, trouble="bad-answer", message=text))
            return
        self._active[request.key] = slot

    def cancel(self, key: Key) -> None:
        slot = self._active.pop(key, None)
        if slot is not None:
            self._multi.remove_handle(slot.curl)
            slot.curl.close()
            self._ended.append(TransferReply(key, trouble="cancelled"))

    def collect(self) -> list[TransferReply]:
        """Return what has ended since the last call."""
        queued = 1
        while queued:
            queued, succeeded, failed = self._multi.info_read()
            for curl in succeeded:
                self._end(curl.slot, 0, "")
            for curl, code, message in failed:
                self._end(curl.slot, code, message)
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> list[TransferReply]:
        for key in list(self._active):
            self.cancel(key)
        for slot in (slot for slots in self._idle.values() for slot in slots):
            slot.curl.close()
        self._multi.close()
        self._poll.close()
        return self._ended

    def _end(self, slot: "_Slot", code: int, message: str) -> None:
        self._multi.remove_handle(slot.curl)
        request = slot.request
        del self._active[request.key]
        self._ended.append(slot.reply(code, message))
        idle = self._idle.setdefault(_kind(request.method), [])
        reusable = request.tls is None and len(request.body) <= _LARGEST_POOLED_BODY
        if reusable and len(idle) < _MOST_IDLE_HANDLES:
            idle.append(slot)
        else:
            slot.curl.close()

    def _watch(self, what: int, fd: int, _multi: object, _data: object) -> None:
        if what == pycurl.POLL_REMOVE:
            # A kept connection is used again soon: it stays registered until it becomes ready.
            self._resting.add(fd)
            return
        # libcurl's POLL_IN and POLL_OUT are 1 and 2, epoll's are 1 and 4.
        mask = (_EPOLL_IN if what & 1 else 0) | (_EPOLL_OUT if what & 2 else 0)
        self._resting.discard(fd)
        self._poll.set(fd, mask)


class _Slot:
    """A libcurl handle with its callbacks, used for one request after another of one kind."""

    def __init__(self, settings: SenderSettings, kind: str) -> None:
        self._max_response = settings.max_response
        self._read_limit = max(settings.read_limit, settings.max_response)
        self._method = ""
        self.curl: Any = pycurl.Curl()
        self.curl.slot = self
        setopt = self.curl.setopt
        setopt(_KINDS.get(kind, pycurl.POST), 1)
        setopt(pycurl.NOSIGNAL, 1)
        setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_2TLS)
        setopt(pycurl.HTTP09_ALLOWED, 0)
        setopt(pycurl.FOLLOWLOCATION, 0)
        setopt(pycurl.PROXY, "")
        setopt(pycurl.NOPROXY, "*")
        setopt(pycurl.PATH_AS_IS, 1)
        setopt(pycurl.HTTP_CONTENT_DECODING, 0)
        setopt(pycurl.SSL_VERIFYPEER, 1)
        setopt(pycurl.SSL_VERIFYHOST, 2)
        setopt(pycurl.TCP_KEEPALIVE, 1)
        setopt(pycurl.BUFFERSIZE, _BUFFER)
        setopt(pycurl.UPLOAD_BUFFERSIZE, _BUFFER)
        setopt(pycurl.CONNECTTIMEOUT_MS, int(settings.connect_timeout * 1000))
        setopt(pycurl.DNS_CACHE_TIMEOUT, settings.dns_cache)
        if settings.ca_file is not None:
            setopt(pycurl.CAINFO, settings.ca_file)
        setopt(pycurl.WRITEFUNCTION, self._write)
        setopt(pycurl.HEADERFUNCTION, self._header)
        setopt(pycurl.OPENSOCKETFUNCTION, self._open_socket)
        setopt(pycurl.PREREQFUNCTION, self._before_request)

    def prepare(self, request: TransferRequest) -> None:
        self.request = request
        self._lines: list[bytes] = []
        self._header_bytes = 0
        self._body = bytearray()
        self._size = 0
        self._refusal: str | None = None
        setopt = self.curl.setopt
        setopt(pycurl.URL, request.url)
        setopt(pycurl.HTTPHEADER, request.headers)
        setopt(pycurl.TIMEOUT_MS, max(1, int(request.timeout * 1000)))
        if request.method not in _KINDS:
            setopt(pycurl.POSTFIELDS, request.body)
            if request.method != self._method:
                self._method = request.method
                setopt(pycurl.CUSTOMREQUEST, request.method)
        tls = request.tls
        if tls is not None and tls.ca is not None:
            setopt(pycurl.CAINFO_BLOB, tls.ca)
        if tls is not None and tls.certificate is not None and tls.key is not None:
            setopt(pycurl.SSLCERT_BLOB, tls.certificate)
            setopt(pycurl.SSLKEY_BLOB, tls.key)

    def reply(self, code: int, message: str) -> TransferReply:
        key = self.request.key
        status = self.curl.getinfo(pycurl.RESPONSE_CODE)
        cut = self._size > self._read_limit
        if code == 0 or (cut and code == pycurl.E_WRITE_ERROR):
            whole = self._size <= self._max_response
            return TransferReply(key, status, self._lines, bytes(self._body), not whole)
        trouble, text = self._trouble(code, message)
        return TransferReply(key, trouble=trouble, message=text)

    def _trouble(self, code: int, message: str) -> tuple[Trouble, str]:
        if self._refusal is not None:
            return "blocked", f"the address may not be called: {self._refusal}"
        if self._header_bytes > _MOST_HEADER_BYTES:
            return "bad-answer", f"the answer has more than {_MOST_HEADER_BYTES} bytes of headers"
        text = "".join(c if c.isprintable() else " " for c in message)[:300]
        if code == pycurl.E_OPERATION_TIMEDOUT:
            return "timeout", text or f"no answer within {self.request.timeout:g} s"
        if code in _BAD_ANSWERS:
            return "bad-answer", text
        return "connection", text or f"libcurl gave up with code {code}"

    # Called by libcurl -----------------------------------------------------------------------

    def _write(self, data: bytes) -> int | None:
        room = self._max_response - len(self._body)
        if room > 0:
            self._body += data[:room]
        self._size += len(data)
        return -1 if self._size > self._read_limit else None

    def _header(self, line: bytes) -> int | None:
        self._header_bytes += len(line)
        if self._header_bytes > _MOST_HEADER_BYTES:
            return -1
        if line[:5] == b"HTTP/":
            self._lines = []  # an interim answer came before this one
        else:
            self._lines.append(line)
        return None

    def _open_socket(self, _purpose: int, address: Any) -> Any:
        family, kind, protocol, place = address
        if family not in (socket.AF_INET, socket.AF_INET6):
            self._refusal = "it is not an internet address"
            return pycurl.SOCKET_BAD
        self._refusal = self.request.egress.refusal(place[0], place[1])
        if self._refusal is not None:
            return pycurl.SOCKET_BAD
        return _SocketHandle(socket.socket(family, kind, protocol).detach())

    def _before_request(self, address: str, _local: str, port: int, _local_port: int) -> int:
        self._refusal = self.request.egress.refusal(address, port)
        return int(pycurl.PREREQFUNC_OK if self._refusal is None else pycurl.PREREQFUNC_ABORT)


class _SocketHandle:
    """A descriptor that pycurl duplicates: ours is closed as soon as nobody holds this any more."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def __del__(self) -> None:
        os.close(self._fd)


class _Poll:
    """epoll where there is one, else poll: they differ in the unit of the timeout only."""

    def __init__(self) -> None:
        self._epoll = hasattr(select, "epoll")
        poll: Any = select.epoll() if self._epoll else select.poll()
        self._poll = poll
        self._register = poll.register
        self._modify = poll.modify

    def set(self, fd: int, mask: int) -> None:
        """Watch a descriptor, known or not: one that was closed was forgotten by epoll itself."""
        try:
            self._modify(fd, mask)
        except OSError:
            self._register(fd, mask)

    def unregister(self, fd: int) -> None:
        # One that was closed before libcurl said so has been forgotten by epoll already.
        with suppress(OSError, KeyError):
            self._poll.unregister(fd)

    def fileno(self) -> int:
        return int(self._poll.fileno())

    def wait(self, seconds: float | None, most: int = -1) -> list[tuple[int, int]]:
        if self._epoll:
            found: list[tuple[int, int]] = self._poll.poll(seconds, most)
        else:
            found = self._poll.poll(None if seconds is None else seconds * 1000)
        return found

    def close(self) -> None:
        if self._epoll:
            self._poll.close()


def _action(mask: int) -> int:
    """Return libcurl's flags for what a descriptor is ready for."""
    return (
        (pycurl.CSELECT_IN if mask & _EPOLL_IN else 0)
        | (pycurl.CSELECT_OUT if mask & _EPOLL_OUT else 0)
        | (pycurl.CSELECT_ERR if mask & _IN_ERROR else 0)
    )


def _kind(method: str) -> str:
    return method if method in _KINDS else "POST"
