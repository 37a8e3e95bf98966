"""Two faces from one code base: methods are written once, as coroutines.

The async client hands the coroutine out to be awaited. The sync client runs it to its end on the
spot: its transport blocks instead of suspending, so the coroutine never yields and needs no event
loop, no thread and no copy of the code.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

P = ParamSpec("P")
T = TypeVar("T")


class Awaiting:
    """The face whose methods are awaited."""


class Blocking:
    """The face whose methods answer at once."""


F = TypeVar("F")


class Faced(Generic[F]):
    """Something with methods of both kinds; `blocking` says which face it wears."""

    blocking: bool


def run(work: Awaitable[T]) -> T:
    """Run something to its end that never really waits."""
    stepping: Any = work if hasattr(work, "send") else work.__await__()
    try:
        stepping.send(None)
    except StopIteration as done:
        answer: T = done.value
        return answer
    raise RuntimeError("a blocking call tried to wait for an event loop")


class Both(Generic[P, T]):
    """A method of both faces."""

    def __init__(self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self._function = function
        update_wrapper(self, function)  # type: ignore[arg-type]

    @overload
    def __get__(self, instance: Faced[Blocking], owner: Any) -> Callable[P, T]: ...
    @overload
    def __get__(
        self, instance: Faced[Awaiting], owner: Any
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, instance: None, owner: Any) -> "Both[P, T]": ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        if instance is None:
            return self
        bound = self._function.__get__(instance, owner)
        if not instance.blocking:
            return bound

        def blocking(*args: P.args, **kwargs: P.kwargs) -> T:
            answer: T = run(bound(*args, **kwargs))
            return answer

        return update_wrapper(blocking, self._function)


class Each(Generic[P, T]):
    """A method of both faces that gives one thing after the other."""

    def __init__(self, function: Callable[Concatenate[Any, P], AsyncIterator[T]]) -> None:
        self._function = function
        update_wrapper(self, function)  # type: ignore[arg-type]

    @overload
    def __get__(self, instance: Faced[Blocking], owner: Any) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, instance: Faced[Awaiting], owner: Any) -> Callable[P, AsyncIterator[T]]: ...
    @overload
    def __get__(self, instance: None, owner: Any) -> "Each[P, T]": ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        if instance is None:
            return self
        bound = self._function.__get__(instance, owner)
        if not instance.blocking:
            return bound

        def blocking(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
            return _iterate(bound(*args, **kwargs))

        return update_wrapper(blocking, self._function)


def both(function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Both[P, T]:
    """Decorates a coroutine method: awaited by one face, run to its end by the other."""
    return Both(function)


def each(function: Callable[Concatenate[Any, P], AsyncIterator[T]]) -> Each[P, T]:
    """Decorates an async generator method: `async for` by one face, `for` by the other."""
    return Each(function)


def _iterate(items: AsyncIterator[T]) -> Iterator[T]:
    while True:
        try:
            item = run(items.__anext__())
        except StopAsyncIteration:
            return
        yield item
