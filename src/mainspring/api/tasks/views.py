"""Tasks and executions as callers read them."""

from functools import lru_cache
from secrets import token_hex
from typing import Any
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw

from mainspring.api.http.bodies import encode_json
from mainspring.api.views import S, instant, instant_or_none, view
from mainspring.domain.retry import RetryPolicy
from mainspring.domain.task import Target, TaskSpec
from mainspring.domain.workflows.definition import TaskTemplate
from mainspring.store.claims import NO_SPEC, UNREADABLE
from mainspring.store.creation import NewTask
from mainspring.store.schedules.schedules import Template
from mainspring.store.tasks import StoredExecution, StoredTask
from mainspring.wire.tasks import (
    ConcurrencyOut,
    ExecutionOut,
    RetryOut,
    TargetOut,
    TaskOut,
)

decode_spec = msgspec.json.Decoder(TaskSpec).decode
_BEARER = "Authorization"
_LARGEST_SHARED = 4096
_decode_any = msgspec.json.Decoder().decode

MASK = "***"
"""What is shown in place of a secret."""


def task_out(task: StoredTask, *, with_payload: bool = True) -> TaskOut:
    """Return the view of a stored task. Its fields are named one by one, which takes a third of the
    time of `view`: a page has hundreds of tasks."""
    spec, target = _read_spec(task.spec)
    return TaskOut(
        id=task.id, name=task.name, state=task.state, cancel_requested=task.cancel_requested,
        target=target, payload=Raw(task.payload) if with_payload else UNSET,
        run_at=task.run_at, due_at=task.due_at, expires_at=task.expires_at, queue=task.queue,
        priority=task.priority, timeout=spec.timeout, sla=spec.sla, jitter=spec.jitter,
        retry=retry_out(spec.retry),
        concurrency=concurrency_out(task.concurrency_key, task.concurrency_limit),
        requires=spec.requires, labels=task.labels or {}, attempts=task.attempts,
        fence=task.fence, created_at=task.created_at, picked_at=task.picked_at,
        started_at=task.started_at, finished_at=task.finished_at,
        result=raw_or_none(task.result), progress=raw_or_none(task.progress), error=task.error,
        sla_met=task.sla_met, blame=task.blame, lateness=task.lateness or {},
        schedule_id=task.schedule_id, nominal_at=task.nominal_at,
        workflow_run_id=task.workflow_run_id, step=task.step, replay_of=task.replay_of,
    )  # fmt: skip


def task_view(
    kind: type[S],
    task: StoredTask | Template | TaskTemplate,
    spec: TaskSpec,
    *others: object,
    **given: object,
) -> S:
    """Return the view of a task, or of what tasks are made from: its own fields and its spec's."""
    return view(
        kind, spec, task, *others,
        retry=retry_out(spec.retry),
        concurrency=concurrency_out(task.concurrency_key, task.concurrency_limit),
        labels=task.labels or {},
        **given,
    )  # fmt: skip


def new_task_json(task: NewTask) -> bytes:
    """Return `new_task_out` as JSON, from a template if the task is a plain one, as most are."""
    if not _is_plain(task):
        return encode_json(new_task_out(task))
    start, named, given, runs, is_due, made, end = _template(task.spec, task.queue, task.priority)
    run = encode_json(instant(task.run))
    return b"".join(
        (
            start,
            b'"%b"' % str(task.id).encode("ascii"),
            named,
            encode_json(task.name),
            given,
            task.payload,
            runs,
            run,
            is_due,
            run if task.due == task.run else encode_json(instant(task.due)),
            made,
            run if task.created == task.run else encode_json(instant(task.created)),
            end,
        )
    )


def _is_plain(task: NewTask) -> bool:
    if task.expires is not None or task.labels or task.concurrency_key is not None:
        return False
    return not (task.schedule_id or task.replay_of) and len(task.spec) <= _LARGEST_SHARED


_BLANK = NewTask(0, UUID(int=0), 0, 0, 0, None, None, None, 0, "", "", None, None, b"", b"null")


@lru_cache(1024)
def _template(spec: bytes, queue: str, priority: int) -> list[bytes]:
    """Return the JSON of new tasks that share all this, cut where they differ. The marks that say
    where are random: nothing a caller wrote can look like one."""
    marks = [token_hex(16).encode("ascii") for _ in range(6)]
    out: Any = new_task_out(_BLANK._replace(spec=spec, queue=queue, priority=priority))
    out.id, out.name, out.payload, out.run_at, out.due_at, out.created_at = map(Raw, marks)
    text, pieces = encode_json(out), []
    for mark in marks:
        piece, _, text = text.partition(mark)
        pieces.append(piece)
    return [*pieces, text]


def new_task_out(task: NewTask) -> TaskOut:
    """Return the view of a new task, before it is inserted."""
    spec, target = _read_spec(task.spec)
    created = instant(task.created)
    run = created if task.run == task.created else instant(task.run)
    return TaskOut(
        id=task.id,
        name=task.name,
        state="scheduled",
        cancel_requested=False,
        target=target,
        payload=Raw(task.payload),
        run_at=run,
        due_at=run if task.due == task.run else instant(task.due),
        expires_at=instant_or_none(task.expires),
        queue=task.queue,
        priority=task.priority,
        timeout=spec.timeout,
        sla=spec.sla,
        jitter=spec.jitter,
        retry=retry_out(spec.retry),
        concurrency=concurrency_out(task.concurrency_key, task.concurrency_limit),
        requires=spec.requires,
        labels=dict(task.labels or {}),
        created_at=created,
        schedule_id=task.schedule_id,
        nominal_at=instant_or_none(task.nominal),
        replay_of=task.replay_of,
    )


def execution_out(execution: StoredExecution) -> ExecutionOut:
    return view(
        ExecutionOut,
        execution,
        response=_response_out(execution.response),
        duration_ms=round(execution.duration_ms, 3),
        lateness=execution.lateness or {},
    )


def concurrency_out(key: str | None, limit: int | None) -> ConcurrencyOut | None:
    return None if key is None or limit is None else ConcurrencyOut(key, limit)


def raw_or_none(text: bytes | None) -> Raw | None:
    """Return stored JSON as it is."""
    return None if text is None else Raw(text)


def retry_out(retry: RetryPolicy) -> RetryOut:
    return RetryOut(
        retry.max_attempts, retry.initial, retry.factor, retry.max_delay, retry.jitter, retry.on
    )


def target_out(target: Target) -> TargetOut:
    """Return the view of a target: the fields of its type only, and secrets masked."""
    shown = TargetOut(
        target.type, target.url, target.method, target.headers, target.name, target.argv
    )
    if target.secret is not None:
        names = [n for n in target.secret.names if not (target.secret.bearer and n == _BEARER)]
        shown.secret_headers = dict.fromkeys(names, MASK) or None
        shown.auth = {"bearer": MASK} if target.secret.bearer else None
    return shown


def _read_spec(spec: bytes) -> tuple[TaskSpec, TargetOut]:
    """Return a spec and the view of its target. Many tasks share a spec, so it is cached, unless it
    is large: a thousand large commands would fill the memory."""
    return _shared_spec(spec) if len(spec) <= _LARGEST_SHARED else _decoded_spec(spec)


@lru_cache(1024)
def _shared_spec(spec: bytes) -> tuple[TaskSpec, TargetOut]:
    return _decoded_spec(spec)


def _decoded_spec(spec: bytes) -> tuple[TaskSpec, TargetOut]:
    try:
        decoded = decode_spec(spec)
    except UNREADABLE:  # a task that has failed for it, or will: it must not spoil whole lists
        decoded = NO_SPEC
    return decoded, target_out(decoded.target)


def _response_out(response: bytes | None) -> Raw | str | None:
    """Return what the target answered: JSON as it is, anything else as text."""
    if response is None:
        return None
    try:
        _decode_any(response)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return response.decode("utf-8", "replace")
    return Raw(response)
