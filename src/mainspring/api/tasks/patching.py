"""Patches of tasks: the rules for a new task, applied to the merged values."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from msgspec import UNSET, Meta, UnsetType

from mainspring.api.http.bodies import encode_json
from mainspring.api.http.payloads import payload_problems
from mainspring.api.http.problems import raise_if
from mainspring.api.tasks.targets import target_problems
from mainspring.api.tasks.validation import (
    EXPIRES_EARLY,
    TaskValidator,
    requirements_of,
    retry_of,
    seconds_of,
)
from mainspring.api.tasks.views import decode_spec
from mainspring.api.views import T
from mainspring.clock import Clock
from mainspring.domain.capability import capability_of
from mainspring.domain.task import Target, TaskSpec
from mainspring.errors import Problem
from mainspring.store.tasks import LockedTask, TaskChange
from mainspring.wire.tasks import JITTERS, SLAS, TIMEOUTS, TargetIn, TaskPatch


@dataclass(frozen=True, slots=True)
class TaskPatcher:
    """The merge of a patch into a task; everything that is wrong is reported together."""

    validator: TaskValidator
    clock: Clock
    max_payload: int

    def apply(self, task: LockedTask, patch: TaskPatch) -> TaskChange:
        problems: list[Problem] = []
        if patch.concurrency is not UNSET:
            problems.append(
                Problem(
                    "/concurrency", "cannot be changed: it determines the partition of the task"
                )
            )
        if patch.payload is not UNSET:
            problems.extend(payload_problems(bytes(patch.payload), self.max_payload))
        if patch.target is not UNSET:
            problems.extend(target_problems(patch.target))
        spec = _merge_spec(decode_spec(task.spec), patch, self.validator.target, problems)
        change = replace(
            self._retimed(task, patch, spec, problems),
            priority=_given(patch.priority, task.priority),
            queue=_given(patch.queue, task.queue),
            capability=capability_of(spec),
            name=_given(patch.name, task.name),
            labels=_given(patch.labels, task.labels) or None,
            spec=encode_json(spec.stored()),
            payload=task.payload if patch.payload is UNSET else bytes(patch.payload),
        )
        raise_if(problems)
        return change

    def _retimed(
        self, task: LockedTask, patch: TaskPatch, spec: TaskSpec, problems: list[Problem]
    ) -> TaskChange:
        change, now = TaskChange.of(task), round(self.clock.now(), 6)
        if all(field is UNSET for field in (patch.run_at, patch.delay, patch.jitter)):
            if patch.expires_at is UNSET:
                return change
            expires = self.validator.expiry(patch.expires_at, max(change.due, now), now, problems)
            return replace(change, expires=expires)
        delay = _given(patch.delay, None)
        run_at = _given(patch.run_at, task.run_at if delay is None else None)
        expires_at = _given(patch.expires_at, task.expires_at)
        found: list[Problem] = []
        times = self.validator.times(run_at, delay, spec.jitter, expires_at, now, found)
        kept = patch.expires_at is UNSET
        problems += _about_what_was_sent(found, task, patch) if kept else found
        return replace(change, run=times.run, due=times.due, expires=times.expires)


def _about_what_was_sent(
    problems: Sequence[Problem], task: LockedTask, patch: TaskPatch
) -> Iterator[Problem]:
    """Yield the problems of a patch that leaves the expiry as it is, at the field that was sent: a
    task that would be due after it expires has the wrong time, not the wrong expiry."""
    sent = next(name for name in ("run_at", "delay", "jitter") if getattr(patch, name) is not UNSET)
    for problem in problems:
        if problem.detail == EXPIRES_EARLY and task.expires_at is not None:
            expires = task.expires_at.isoformat().replace("+00:00", "Z")
            yield Problem(f"/{sent}", f"is not before the task expires, {expires}")
        else:
            yield problem


def _merge_spec(
    spec: TaskSpec, patch: TaskPatch, target: Callable[[TargetIn], Target], problems: list[Problem]
) -> TaskSpec:
    def seconds(given: float | str | UnsetType, old: float, bounds: Meta, pointer: str) -> float:
        return old if isinstance(given, UnsetType) else seconds_of(given, pointer, problems, bounds)

    return replace(
        spec,
        target=spec.target if patch.target is UNSET else target(patch.target),
        timeout=seconds(patch.timeout, spec.timeout, TIMEOUTS, "/timeout"),
        sla=seconds(patch.sla, spec.sla, SLAS, "/sla"),
        jitter=seconds(patch.jitter, spec.jitter, JITTERS, "/jitter"),
        retry=spec.retry if patch.retry is UNSET else retry_of(patch.retry, problems),
        requires=spec.requires if patch.requires is UNSET else requirements_of(patch.requires),
    )


def _given(value: T | UnsetType, otherwise: T) -> T:
    return otherwise if isinstance(value, UnsetType) else value
