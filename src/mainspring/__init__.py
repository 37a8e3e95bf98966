"""Mainspring: run any work once, later, or again and again, at the right moment, losing nothing.

    import mainspring

    app = mainspring.App()

    @app.task(queue="mail", retries=3, timeout=60)
    async def send_mail(to: str) -> None: ...

    send_mail.schedule("ann@example.com", delay=3600)

What is named here is loaded when it is first used: importing Mainspring costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainspring.errors import (
        CallFailed,
        Conflict,
        Forbidden,
        InvalidArguments,
        InvalidRequest,
        MainspringError,
        NonRetryable,
        NotFound,
        PreconditionFailed,
        RequestError,
        RetryAfter,
        TaskNotCompleted,
        TaskUnfinished,
        Unauthenticated,
        Unavailable,
        Unreachable,
    )
    from mainspring.sdk.app import App
    from mainspring.sdk.client import AsyncClient, Client
    from mainspring.sdk.context import Context, current
    from mainspring.sdk.enqueue import Enqueue
    from mainspring.sdk.targets import command, handler, http
    from mainspring.sdk.webhooks import verify
    from mainspring.sdk.workflow import Workflow

    __version__: str

_MODULES = {
    "App": "sdk.app",
    "AsyncClient": "sdk.client",
    "Client": "sdk.client",
    "Context": "sdk.context",
    "Enqueue": "sdk.enqueue",
    "Workflow": "sdk.workflow",
    "command": "sdk.targets",
    "current": "sdk.context",
    "handler": "sdk.targets",
    "http": "sdk.targets",
    "verify": "sdk.webhooks",
}
"""Where each name is defined; those that are not listed are errors."""

__all__ = [
    "App",
    "AsyncClient",
    "CallFailed",
    "Client",
    "Conflict",
    "Context",
    "Enqueue",
    "Forbidden",
    "InvalidArguments",
    "InvalidRequest",
    "MainspringError",
    "NonRetryable",
    "NotFound",
    "PreconditionFailed",
    "RequestError",
    "RetryAfter",
    "TaskNotCompleted",
    "TaskUnfinished",
    "Unauthenticated",
    "Unavailable",
    "Unreachable",
    "Workflow",
    "__version__",
    "command",
    "current",
    "handler",
    "http",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        found: Any = version("mainspring")
    elif name in __all__:
        module = import_module(f"mainspring.{_MODULES.get(name, 'errors')}")
        found = getattr(module, name)
    else:
        raise AttributeError(f"module 'mainspring' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
