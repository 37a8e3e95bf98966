"""What a running handler can know and report: its deadline, cancellation, progress, logs."""

import contextvars
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from mainspring.clock import monotonic, utc, wall_clock

if TYPE_CHECKING:
    from mainspring.sdk.client import AsyncClient, Client


@dataclass(slots=True)
class HandlerLogLine:
    """One log line of an execution."""

    message: str
    level: str
    at: float = field(default_factory=wall_clock)


class Clients(Protocol):
    """The clients with which a context calls the API."""

    @property
    def client(self) -> "Client": ...

    @property
    def async_client(self) -> "AsyncClient": ...


class Context:
    """One execution, for its handler: a parameter of this type, or `mainspring.current()`."""

    def __init__(
        self,
        task_id: UUID,
        *,
        name: str = "",
        attempt: int = 1,
        fence: int = 1,
        timeout: float | None = None,
        clients: Clients | None = None,
        said: Callable[[HandlerLogLine], None] | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        self.task_id = task_id
        """The same in every execution of a task: a good idempotency key for what you call."""
        self.name = name
        self.attempt = attempt
        self.fence = fence
        """Rises with every execution: what you write to can refuse an older one."""
        self.details = details or {}
        """What else the server tells: the schedule, the nominal time, the workflow run."""
        self._clients = clients
        self._said = said
        self._ends = None if timeout is None else monotonic() + timeout
        self._cancelled = False
        self._cancel_event: threading.Event | None = None
        """Set by `cancel`; made when a handler first waits for it: most never do."""
        self.last_progress: Any = None

    @property
    def deadline(self) -> datetime | None:
        """When the execution is ended by force, by this machine's clock."""
        if self._ends is None:
            return None
        return utc(wall_clock() + self._ends - monotonic())

    @property
    def remaining(self) -> float:
        """Seconds until the deadline."""
        return float("inf") if self._ends is None else max(0.0, self._ends - monotonic())

    @property
    def cancelled(self) -> bool:
        """Whether the handler shall end: the task or worker is stopped, or the lease was lost.
        One in a thread looks at this now and then; async ones are cancelled."""
        return self._cancelled

    def wait(self, seconds: float) -> bool:
        """Sleep, but wake up when cancelled; return whether that happened."""
        event = self._cancel_event = self._cancel_event or threading.Event()
        return self._cancelled or event.wait(seconds)

    def heartbeat(self, progress: Any = None) -> bool:
        """Report how far it is, if you like; return whether to go on. It need not be called."""
        if progress is not None:
            self.progress(progress)
        return not self.cancelled

    def progress(self, value: Any) -> None:
        """Report how far it is: any JSON value. It is sent with the next heartbeat."""
        self.last_progress = value

    def log(self, message: object, level: str = "info") -> None:
        """Write a line to the task's log."""
        if self._said is not None:
            self._said(HandlerLogLine(str(message), level))

    def once(self, key: str, answer: Any = None) -> bool:
        """Return whether this execution is the task's first to record this key. Of all executions,
        on all machines, one gets True; asking again gives the same."""
        return self._api.client.effects.note(**self._effect(key, answer)).first

    async def aonce(self, key: str, answer: Any = None) -> bool:
        """`once` for async handlers."""
        return (await self._api.async_client.effects.note(**self._effect(key, answer))).first

    # For its runner --------------------------------------------------------------------------

    def cancel(self) -> None:
        self._cancelled = True
        if self._cancel_event is not None:
            self._cancel_event.set()

    @property
    def _api(self) -> Clients:
        if self._clients is None:
            raise RuntimeError("this context belongs to no app: it cannot call the API")
        return self._clients

    def _effect(self, key: str, answer: Any) -> dict[str, Any]:
        text = f"once:{self.task_id}:{self.fence}:{key}"
        if not (text.isascii() and text.isprintable() and len(text) <= 255):
            text = f"once:{sha256(text.encode()).hexdigest()}"
        return {"key": f"{self.task_id}:{key}", "answer": answer, "idempotency_key": text}


_CURRENT: contextvars.ContextVar[Context] = contextvars.ContextVar("mainspring_context")


def current() -> Context:
    """Return the context of the handler that is running; LookupError outside of one."""
    return _CURRENT.get()


def variables_with(context: Context) -> contextvars.Context:
    """Return a copy of the context variables in which it is the current context."""
    variables = contextvars.copy_context()
    variables.run(_CURRENT.set, context)
    return variables
