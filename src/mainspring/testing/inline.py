"""Handlers inline: called with decoded arguments, and judged, as in a worker."""

import asyncio
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import msgspec

from mainspring.sdk.context import Context, HandlerLogLine, variables_with
from mainspring.sdk.functions import TaskFunction
from mainspring.sdk.worker.outcomes import ReportedOutcome, failed, failure, success
from mainspring.testing.memory import MemoryApi


@dataclass(frozen=True, slots=True)
class Ran:
    """The outcome of an execution, as it would be reported."""

    status: str
    result: Any = None
    error: str | None = None
    code: str | None = None
    retryable: bool = True
    retry_after: float | None = None
    logs: list[str] = field(default_factory=list)
    progress: Any = None

    @property
    def succeeded(self) -> bool:
        return self.status == "succeeded"


@dataclass
class Trial:
    """Runs a handler: `assert Trial(attempt=2).run(send_mail, "ann@example.com").succeeded`.

    Executions of one Trial belong to one task, and share its effect log.
    """

    attempt: int = 1
    fence: int = 1
    cancelled: bool = False
    timeout: float = 30.0
    task_id: UUID = field(default_factory=uuid4)
    details: dict[str, Any] = field(default_factory=dict)
    api: MemoryApi = field(default_factory=MemoryApi)

    def run(self, function: TaskFunction[..., Any], *args: Any, **kwargs: Any) -> Ran:
        """Send the arguments as they would be sent, and run the handler on what arrives."""
        payload = function.signature.pack(args, kwargs)
        said: list[HandlerLogLine] = []
        context = Context(
            self.task_id,
            name=function.name,
            attempt=self.attempt,
            fence=self.fence,
            timeout=self.timeout,
            clients=self.api,
            said=said.append,
            details=self.details,
        )
        if self.cancelled:
            context.cancel()
        verdict = variables_with(context).run(_call, function, payload, context)
        return Ran(
            verdict.status,
            None if verdict.result is None else msgspec.json.decode(verdict.result),
            verdict.message or None,
            verdict.code,
            verdict.retryable,
            verdict.retry_after,
            [line.message for line in said],
            context.last_progress,
        )


def _call(function: TaskFunction[..., Any], payload: bytes, context: Context) -> ReportedOutcome:
    try:
        call = function.signature.unpack(payload, context)
        value: Any = function.function(*call.args, **call.kwargs)
        if function.is_async:
            value = asyncio.run(_limited(value, context))
        return success(value)
    except TimeoutError as problem:
        if context.remaining > 0:
            return failure(problem)
        return failed("timeout", "it took too long")
    except Exception as problem:
        return failure(problem)


async def _limited(work: Any, context: Context) -> Any:
    async with asyncio.timeout(context.remaining):
        return await work
