"""Decoding of bodies to typed requests; each problem says where it is.

A body is decoded once as a whole. Only when that fails is it taken apart, so that everything that
is wrong with it is named and not only the first mistake.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, TypeVar, cast

import msgspec
from msgspec import UnsetType

from mainspring.api.http.body_errors import all_problems, locate, readable_as, with_integers
from mainspring.api.http.duplicate_names import (
    DuplicateNameError,
    check_unique_names,
    without_payloads,
)
from mainspring.errors import InvalidRequest, MalformedRequest, Problem, RequestError
from mainspring.wire.tasks import BatchIn, RawBatchIn, TaskIn, TaskPatch

T = TypeVar("T")

MOST_PROBLEMS = 100
"""Maximum problems in one answer."""

_TASK = msgspec.json.Decoder(TaskIn)
_BATCH = msgspec.json.Decoder(BatchIn)
_RAW_BATCH = msgspec.json.Decoder(RawBatchIn)

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}"
    rb"|(?P<lone>u[dD][89a-fA-F][\da-fA-F]{2})|.)",
    re.DOTALL,
)


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def decode_task(body: bytes, at: str = "") -> TaskIn:
    """Decode the body of POST /v1/tasks, or a task of a batch, whose place is `at`."""
    task = _decode(_TASK, body, at)
    _check_names(body, [task.payload], at)
    return task


def decode_patch(body: bytes) -> TaskPatch:
    """Decode the body of PATCH /v1/tasks/{id}."""
    patch: TaskPatch = _decode(_decoder(TaskPatch), body)
    _check_names(body, [] if isinstance(patch.payload, UnsetType) else [patch.payload])
    return patch


def decode_as(
    kind: type[T], body: bytes, payloads: Callable[[T], Iterable[msgspec.Raw]] = lambda _: ()
) -> T:
    """Decode a body; `payloads` returns the parts of it that are kept as they came."""
    decoded: T = _decode(_decoder(cast(Hashable, kind)), body)
    _check_names(body, payloads(decoded))
    return decoded


def decode_batch(body: bytes, *, most: int) -> list[TaskIn]:
    """Decode the tasks of a JSON batch."""
    try:
        tasks = _decode(_BATCH, body, look_closer=False).tasks
        _check_names(body, [task.payload for task in tasks])
    except InvalidRequest:
        # Where not even the list can be read, this raises the same problem again.
        pieces = _decode(_RAW_BATCH, body, shape=BatchIn).tasks
        _check_names(body, pieces)
        _check_count(len(pieces), most)
        return _decode_each([bytes(piece) for piece in pieces])
    _check_count(len(tasks), most)
    return tasks


def decode_lines(body: bytes, *, most: int) -> list[TaskIn]:
    """Decode the tasks of an NDJSON batch: one a line; blank lines do not count."""
    check_utf8(body)
    lines = [line for line in body.split(b"\n") if line.strip()]
    _check_count(len(lines), most)
    tasks = _decode_all(body, lines)
    if tasks is None:
        return _decode_each(lines)
    seen: set[bytes] = set()  # most lines differ in their payloads only
    for index, (line, task) in enumerate(zip(lines, tasks, strict=True)):
        rest = without_payloads(line, [task.payload])
        if rest not in seen:
            _check_names(rest, [], f"/tasks/{index}")
            seen.add(rest)
    return tasks


def readable_task(body: bytes) -> Iterator[tuple[str, TaskIn]]:
    """Yield what can be read of a task that was refused, with its place."""
    task = readable_as(TaskIn, body)
    if task is not None:
        yield "", task


def readable_tasks(
    body: bytes, *, most: int, as_lines: bool = False
) -> Iterator[tuple[str, TaskIn]]:
    """Yield what can be read of each task of a batch; nothing if it has too many tasks."""
    if as_lines:
        pieces = [line for line in body.split(b"\n") if line.strip()]
    else:
        batch = readable_as(RawBatchIn, body)
        pieces = [] if batch is None else [bytes(piece) for piece in batch.tasks]
    for index, piece in enumerate(pieces if len(pieces) <= most else []):
        for _, task in readable_task(piece):
            yield f"/tasks/{index}", task


def _decode_all(body: bytes, lines: Sequence[bytes]) -> list[TaskIn] | None:
    """Return all lines decoded in one call; None if each has to be decoded on its own.

    The decoder does not insist on one value a line. Where every line opens and closes an object,
    none can go on in the next, and if there are as many values as lines, each has its own.
    """
    if not all(line.strip()[:1] + line.strip()[-1:] == b"{}" for line in lines):
        return None
    try:
        tasks = _TASK.decode_lines(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return tasks if len(tasks) == len(lines) else None


def check_utf8(body: bytes) -> None:
    """Refuse a body that is not UTF-8: payloads are stored as the bytes that came."""
    if body.isascii():
        return
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedRequest(
            "the body is not valid UTF-8", [Problem("", f"invalid UTF-8 at byte {error.start}")]
        ) from None


def _decode(
    decoder: msgspec.json.Decoder[T],
    body: bytes,
    at: str = "",
    *,
    look_closer: bool = True,
    shape: type | None = None,
) -> T:
    """Decode a body; `shape` is its type where that is not the type of the decoder."""
    check_utf8(body)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        return _decode_closely(decoder, body, error, at, shape or decoder.type, look_closer)
    except (msgspec.DecodeError, UnicodeError) as error:
        reason = _lone_surrogate(body, str(error)) or str(error)
        if not body.strip():
            reason = "the body is empty"
        raise MalformedRequest("the body is not valid JSON", [Problem(at, reason)]) from None
    except RecursionError:
        raise InvalidRequest(
            "the body is nested too deeply", [Problem(at, "nested too deeply")]
        ) from None


_LARGEST_LOOKED_AT = 2 * 2**20
"""Bytes of a refused body in which more than one mistake is looked for: a tenth of a second."""


def _decode_closely(
    decoder: msgspec.json.Decoder[T],
    body: bytes,
    error: msgspec.ValidationError,
    at: str,
    kind: Any,
    look_closer: bool,
) -> T:
    """Decode a refused body with 5.0 read as 5; otherwise raise all of its problems."""
    plain = with_integers(kind, body)
    if plain is not body:
        try:
            return decoder.decode(plain)
        except msgspec.ValidationError as remaining:
            error = remaining
    closer = look_closer and len(plain) <= _LARGEST_LOOKED_AT
    found = all_problems(kind, plain, MOST_PROBLEMS) if closer else []
    problems = [Problem(at + one.pointer, one.detail) for one in found]
    raise InvalidRequest(
        "the body does not have the right shape", problems or [locate(error, at)]
    ) from None


def _lone_surrogate(body: bytes, error: str) -> str | None:
    """Return what is wrong with a surrogate that stands alone, which msgspec calls truncated or a
    bad escape; None if the error is another."""
    if not any(word in error for word in ("truncated", "surrogate", "hex escape")):
        return None
    lone = next((found for found in _ESCAPE.finditer(body) if found["lone"]), None)
    if lone is None or body.find(b'"', lone.end()) < 0:  # it may have been cut off here
        return None
    half = lone[0].decode("ascii")
    return (
        f"{half} is half of a surrogate pair, and the other half is missing (byte {lone.start()})"
    )


def _check_names(body: bytes, payloads: Iterable[msgspec.Raw], at: str = "") -> None:
    try:
        check_unique_names(body, payloads)
    except (DuplicateNameError, RecursionError) as error:
        raise InvalidRequest("the body is ambiguous", [Problem(at, str(error))]) from None


def _decode_each(pieces: Sequence[bytes]) -> list[TaskIn]:
    tasks: list[TaskIn] = []
    problems: list[Problem] = []
    kind: type[RequestError] = InvalidRequest
    for index, piece in enumerate(pieces):
        try:
            tasks.append(decode_task(piece, f"/tasks/{index}"))
        except RequestError as error:
            problems.extend(error.problems)
            kind = type(error)
            if len(problems) >= MOST_PROBLEMS:
                break
    if problems:
        raise kind("some tasks of the batch cannot be read", problems[:MOST_PROBLEMS])
    return tasks


def _check_count(count: int, most: int) -> None:
    if count == 0:
        raise InvalidRequest("a batch needs tasks", [Problem("/tasks", "there are none")])
    if count > most:
        raise InvalidRequest(
            "too many tasks in one batch", [Problem("/tasks", f"{count} tasks; the most is {most}")]
        )
