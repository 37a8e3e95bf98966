"""A sync and an async client from one code base: methods are written once, as coroutines.

The async client returns the coroutine to be awaited. The sync client runs it to its end at once:
its transport blocks instead of suspending, so the coroutine never yields and needs no event loop,
no thread and no copy of the code.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

P = ParamSpec("P")
T = TypeVar("T")


class Awaiting:
    """Marker of the async client, whose methods are awaited."""


class Blocking:
    """Marker of the sync client, whose methods block."""


F = TypeVar("F")


class Dual(Generic[F]):
    """Base of classes with such methods; `blocking` says whether they block."""

    blocking: bool


def run(work: Awaitable[T]) -> T:
    """Run a coroutine to its end that never suspends."""
    stepping: Any = work if hasattr(work, "send") else work.__await__()
    try:
        stepping.send(None)
    except StopIteration as done:
        answer: T = done.value
        return answer
    raise RuntimeError("a blocking call tried to wait for an event loop")


class _Method(Generic[P, T]):
    """A method of both clients."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        update_wrapper(self, function)  # type: ignore[arg-type]

    def _bind(self, instance: Any, block: Callable[[Any], Any]) -> Any:
        if instance is None:
            return self
        bound = self._function.__get__(instance)
        if not instance.blocking:
            return bound
        return update_wrapper(lambda *args, **kw: block(bound(*args, **kw)), self._function)


class Both(_Method[P, T]):
    """A method that is awaited in the async client, and blocks in the sync one."""

    @overload
    def __get__(self, instance: Dual[Blocking], owner: Any) -> Callable[P, T]: ...
    @overload
    def __get__(
        self, instance: Dual[Awaiting], owner: Any
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, instance: None, owner: Any) -> "Both[P, T]": ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        return self._bind(instance, run)


class Each(_Method[P, T]):
    """The same of an iterator: `async for` in the async client, `for` in the sync one."""

    @overload
    def __get__(self, instance: Dual[Blocking], owner: Any) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, instance: Dual[Awaiting], owner: Any) -> Callable[P, AsyncIterator[T]]: ...
    @overload
    def __get__(self, instance: None, owner: Any) -> "Each[P, T]": ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        return self._bind(instance, _iterate)


def both(function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Both[P, T]:
    """Decorate a coroutine method of both clients."""
    return Both(function)


def each(function: Callable[Concatenate[Any, P], AsyncIterator[T]]) -> Each[P, T]:
    """Decorate a method of both clients that returns an async iterator."""
    return Each(function)


def _iterate(items: AsyncIterator[T]) -> Iterator[T]:
    while True:
        try:
            item = run(items.__anext__())
        except StopAsyncIteration:
            return
        yield item
