"""Targets, fields and labels of tasks and schedules, as a caller writes them."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, TypedDict
from uuid import UUID

from mainspring.sdk.encoding import present, with_offsets

Target = Mapping[str, Any]
Duration = float | timedelta | str
"""Seconds, a timedelta, or ISO 8601 such as PT15M."""
Moment = datetime | str
"""A time with an offset."""

DEFINITION = "mainspring-definition"
"""The label with the digest of a definition, by which `put` finds it unchanged."""
OWNER = "mainspring-app"
"""The label that says which app declares a schedule."""
VERSION = "mainspring-app-version"
"""The label that says which version of the app declared it last."""


class Retry(TypedDict, total=False):
    """How failed executions are repeated."""

    max_attempts: int
    initial: Duration
    factor: float
    max_delay: Duration
    jitter: float
    on: list[int | str]


class Concurrency(TypedDict, total=False):
    """At most `limit` tasks of this key run at once."""

    key: str
    limit: int


class Requires(TypedDict, total=False):
    """Requirements on a worker besides the handler."""

    tags: list[str]
    memory_mb: int
    cpu: float


class TemplateFields(TypedDict, total=False):
    """The fields of a task that a schedule makes: all but its times."""

    payload: Any
    name: str
    queue: str
    priority: int
    timeout: Duration
    sla: Duration
    retry: Retry
    concurrency: Concurrency
    requires: Requires
    labels: Mapping[str, str]


class TaskFields(TemplateFields, total=False):
    """The fields of a task besides its target."""

    run_at: Moment
    delay: Duration
    jitter: Duration
    expires_at: Moment


class TaskChanges(TaskFields, total=False):
    """The fields of a task that can be changed before it starts."""

    target: Target


class ListFields(TypedDict, total=False):
    """What tasks and dead letters are both found by; `limit` is the size of a page."""

    name: str | None
    queue: str | None
    label: Mapping[str, str] | None
    limit: int | None


class TaskListFields(ListFields, total=False):
    """Which tasks are listed."""

    state: str | None
    schedule_id: UUID | str | None
    workflow_run_id: UUID | str | None
    due_after: datetime | None
    due_before: datetime | None
    payload: bool | None


class DeadLetterListFields(ListFields, total=False):
    """Which dead letters are listed."""

    resolved: bool | None
    fingerprint: str | None
    died_after: datetime | None
    died_before: datetime | None


class ScheduleFields(TypedDict, total=False):
    """The fields of a schedule besides its name and its task."""

    cron: str
    interval: Duration
    rrule: str
    timezone: str
    start_at: Moment
    end_at: Moment
    max_runs: int
    jitter: Duration
    spread: Duration
    misfire: Mapping[str, Any]
    overlap: str
    max_running: int
    dst: Mapping[str, str]
    exclude: list[str]
    calendars: list[str]
    stop_on_410: bool


class ScheduleChanges(ScheduleFields, total=False):
    """The fields of a schedule that can be changed."""

    name: str
    task: Mapping[str, Any]


def http(
    url: str,
    method: str = "POST",
    *,
    headers: Mapping[str, str] | None = None,
    bearer: str | None = None,
    secret_headers: Mapping[str, str] | None = None,
) -> Target:
    """Call a URL. `bearer` and `secret_headers` are kept encrypted and never shown again."""
    target: dict[str, Any] = {"type": "http", "url": url, "method": method}
    if headers:
        target["headers"] = dict(headers)
    if bearer is not None:
        target["auth"] = {"bearer": bearer}
    if secret_headers:
        target["secret_headers"] = dict(secret_headers)
    return target


def handler(name: str) -> Target:
    """Call a function that a worker offers under this name."""
    return {"type": "handler", "name": name}


def command(*argv: str) -> Target:
    """Run a program on a worker that allows it."""
    return {"type": "command", "argv": list(argv)}


def described(target: Target, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task as it is sent; None means that a field is left out."""
    wanted = present(**fields)
    if "payload" in fields:
        wanted["payload"] = fields["payload"]
    return {"target": target, **with_offsets(wanted)}


def labels_of(task: Mapping[str, Any] | None) -> Mapping[str, str]:
    """Return the labels of the tasks that a schedule makes."""
    return (task or {}).get("labels") or {}


def version_in(labels: Mapping[str, str]) -> int:
    """Return the version of an app; 0, older than any, where there is none."""
    text = labels.get(VERSION, "")
    return int(text) if text.isdecimal() else 0
