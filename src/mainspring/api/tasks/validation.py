"""Validation of tasks: the rules that join fields, and the rows and specs to insert.

Written for batches of thousands: a task whose spec was seen before costs a look-up, and every rule
that does not concern a task costs one comparison.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import NamedTuple, NoReturn

from msgspec import Meta

from mainspring.api.http.bodies import encode_json
from mainspring.api.http.decoding import MOST_PROBLEMS
from mainspring.api.http.payloads import payload_problems
from mainspring.api.http.problems import raise_if
from mainspring.api.tasks.targets import Seal, has_secrets, target_of, target_problems
from mainspring.clock import Clock
from mainspring.config import Config
from mainspring.domain.capability import capability_of
from mainspring.domain.duration import parse_duration
from mainspring.domain.ids import TaskIds
from mainspring.domain.retry import RetryPolicy
from mainspring.domain.task import Requirements, Target, TaskSpec
from mainspring.errors import Problem, RequestError
from mainspring.store.creation import NewTask
from mainspring.wire.tasks import (
    BACKOFFS,
    DAY,
    JITTERS,
    SLAS,
    TIMEOUTS,
    Delay,
    RequiresIn,
    RetryIn,
    TargetIn,
    TaskIn,
    TimelessTask,
)

EXPIRES_EARLY = "is not after the time the task is due"
UNBOUNDED = Meta()

_CACHED_SPECS = 4096
"""Maximum specs in the cache, of at most `_LARGEST_CACHED` bytes each."""
_LARGEST_CACHED = 4096
_TASKS_PER_TURN = 200
"""Tasks of a batch, or one with a large payload, after which others get their turn."""
_LARGE_PAYLOAD = 100_000
_SMALLEST_CHECKED = 4
"""Bytes below which nothing can be wrong with a payload, as with `{}`."""


class CompiledSpec(NamedTuple):
    """A spec that was checked: as stored, with what the columns repeat of it."""

    encoded: bytes
    capability: str
    jitter: float
    problems: tuple[Problem, ...]


class Times(NamedTuple):
    """When a task shall run; `due` is `run` plus its share of the jitter."""

    run: float
    due: float
    expires: float | None


@dataclass(slots=True)
class TaskValidator:
    """The rules of tasks, and the rows to insert; everything that is wrong is reported together."""

    config: Config
    clock: Clock
    ids: TaskIds
    rng: Random
    seal: Seal | None = None
    _specs: dict[tuple[object, ...], CompiledSpec] = field(default_factory=dict, init=False)

    def one(self, tenant_id: int, task: TaskIn) -> NewTask:
        """Return a task to insert; problems point into its body."""
        problems: list[Problem] = []
        made = self._make(tenant_id, task, round(self.clock.now(), 6), problems)
        raise_if(problems)
        return made

    async def many(self, tenant_id: int, tasks: Sequence[TaskIn]) -> list[NewTask]:
        """Return a batch of tasks to insert; problems name the task's index. Yields to the event
        loop in between, because the engine shares it and must not start its tasks late."""
        now = round(self.clock.now(), 6)
        made: list[NewTask] = []
        problems: list[Problem] = []
        for index, task in enumerate(tasks, 1):
            found: list[Problem] = []
            made.append(self._make(tenant_id, task, now, found))
            if found:
                at = f"/tasks/{index - 1}"
                problems.extend(p.at(at + p.pointer) for p in found)
                if len(problems) >= MOST_PROBLEMS:
                    break
            if index % _TASKS_PER_TURN == 0 or len(made[-1].payload) > _LARGE_PAYLOAD:
                await asyncio.sleep(0)
        raise_if(problems[:MOST_PROBLEMS])
        return made

    async def refuse(self, error: RequestError, tasks: Iterable[tuple[str, TaskIn]]) -> NoReturn:
        """Refuse what could not be read, and say as well what is wrong with the rest: with the
        tasks as far as they can be read, each with its place."""
        now = round(self.clock.now(), 6)
        problems = list(error.problems)
        known = {problem.pointer for problem in problems}
        for index, (at, task) in enumerate(tasks, 1):
            if f"{at}/run_at" in known:
                task.expires_at = None  # whether it is late enough cannot be said
            found: list[Problem] = []
            self._make(0, task, now, found)
            problems.extend(p.at(at + p.pointer) for p in found)
            if len(problems) >= MOST_PROBLEMS:
                break
            if index % _TASKS_PER_TURN == 0:
                await asyncio.sleep(0)
        raise type(error)(error.detail, problems[:MOST_PROBLEMS])

    def _make(self, tenant_id: int, task: TaskIn, now: float, problems: list[Problem]) -> NewTask:
        spec = self.compile(task)
        if spec.problems:
            problems.extend(spec.problems)
        payload = bytes(task.payload)
        if len(payload) > _SMALLEST_CHECKED:
            problems.extend(payload_problems(payload, self.config.max_payload))
        if task.run_at is None and task.delay is None and not task.jitter and not task.expires_at:
            times = Times(now, now, None)
        else:
            times = self.times(task.run_at, task.delay, spec.jitter, task.expires_at, now, problems)
        limit = task.concurrency
        return NewTask(
            tenant_id,
            self.ids.make(now),
            now,
            times.run,
            times.due,
            times.expires,
            limit.key if limit else None,
            limit.limit if limit else None,
            task.priority,
            task.queue,
            spec.capability,
            task.name,
            task.labels or None,
            spec.encoded,
            payload,
        )

    def compile(self, task: TaskIn) -> CompiledSpec:
        """Return the task's spec, checked and encoded once for all tasks that share it."""
        key = (task.target, task.timeout, task.sla, task.jitter, task.retry, task.requires)
        try:
            found = self._specs.get(key)
        except TypeError:  # headers are a mapping, which has no hash
            return self._compile(task)
        if found is None:
            found = self._compile(task)
            # What holds a secret is not remembered, or its neighbours' ciphertext would tell.
            if not has_secrets(task.target) and len(found.encoded) <= _LARGEST_CACHED:
                if len(self._specs) >= _CACHED_SPECS:
                    self._specs.clear()
                self._specs[key] = found
        return found

    def compile_timeless(
        self, task: TimelessTask, target: TargetIn, jitter: Delay = 0.0
    ) -> CompiledSpec:
        """Return the spec, with this target, of a task that a schedule or a workflow makes."""
        return self.compile(
            TaskIn(
                target=target,
                timeout=task.timeout,
                sla=task.sla,
                jitter=jitter,
                retry=task.retry,
                requires=task.requires,
            )
        )

    def target(self, target: TargetIn) -> Target:
        """Return a target as it is stored, its secrets sealed."""
        return target_of(target, self.seal)

    def _compile(self, task: TaskIn) -> CompiledSpec:
        problems = list(target_problems(task.target))
        target = target_of(task.target, None if problems else self.seal)
        spec = TaskSpec(
            target,
            seconds_of(task.timeout, "/timeout", problems, TIMEOUTS),
            seconds_of(task.sla, "/sla", problems, SLAS),
            seconds_of(task.jitter, "/jitter", problems, JITTERS),
            retry_of(task.retry, problems),
            requirements_of(task.requires),
        )
        encoded = encode_json(spec.stored())
        return CompiledSpec(encoded, capability_of(spec), spec.jitter, tuple(problems))

    def times(
        self,
        run_at: datetime | None,
        delay: Delay | None,
        jitter: float,
        expires_at: datetime | None,
        now: float,
        problems: list[Problem],
    ) -> Times:
        """Return when a task shall run; add to `problems` what is wrong with its times."""
        run = self._run(run_at, delay, now, problems)
        # What was asked for too late is due now: nobody else is to blame for the time before.
        due = max(run, now)
        # Compared with the latest due time, so that luck with the jitter does not decide.
        expires = self.expiry(expires_at, due + jitter, now, problems)
        if jitter:
            due = round(due + self.rng.uniform(0, jitter), 6)
        return Times(run, due, expires)

    def expiry(
        self, expires_at: datetime | None, due: float, now: float, problems: list[Problem]
    ) -> float | None:
        """Return when a task due at `due` expires; add to `problems` what is wrong with that."""
        if expires_at is None:
            return None
        expires = expires_at.timestamp()
        if expires <= due:
            problems.append(Problem("/expires_at", EXPIRES_EARLY))
        elif expires > now + 2 * self.config.horizon:
            problems.append(Problem("/expires_at", _too_far(2 * self.config.horizon)))
        return expires

    def _run(
        self, run_at: datetime | None, delay: Delay | None, now: float, problems: list[Problem]
    ) -> float:
        run, pointer = now, "/run_at"
        if run_at is not None:
            run = run_at.timestamp()
            if delay is not None:
                problems.append(Problem("/delay", "cannot be given together with run_at"))
        elif delay is not None:
            pointer = "/delay"
            run = round(now + seconds_of(delay, pointer, problems), 6)
        if run > now + self.config.horizon + 1e-6:  # it was rounded
            problems.append(Problem(pointer, _too_far(self.config.horizon)))
        elif run < 0:
            problems.append(Problem(pointer, "is before 1970"))
        return run


def _too_far(most: float) -> str:
    return f"is too far ahead: at most {most / DAY:g} days are allowed"


def seconds_of(
    given: Delay, pointer: str, problems: list[Problem], bounds: Meta = UNBOUNDED
) -> float:
    """Return a duration in seconds, 0 if it is refused; add to `problems` if it cannot be read or
    is not within its bounds, which the decoder has checked where it is a number."""
    if not isinstance(given, str):
        return given
    try:
        seconds = parse_duration(given)
    except ValueError as error:
        problems.append(Problem(pointer, str(error)))
        return 0.0
    if bounds.gt is not None and seconds <= bounds.gt:
        detail = f"is not more than {bounds.gt:g} seconds"
    elif bounds.le is not None and seconds > bounds.le:
        detail = f"is {seconds:.0f} seconds; the most is {bounds.le:.0f}"
    else:
        return seconds
    problems.append(Problem(pointer, detail))
    return 0.0


def retry_of(retry: RetryIn, problems: list[Problem]) -> RetryPolicy:
    return RetryPolicy(
        retry.max_attempts,
        seconds_of(retry.initial, "/retry/initial", problems, BACKOFFS),
        retry.factor,
        seconds_of(retry.max_delay, "/retry/max_delay", problems, BACKOFFS),
        retry.jitter,
        None if retry.on is None else list(retry.on),
    )


def requirements_of(requires: RequiresIn | None) -> Requirements | None:
    if requires is None:
        return None
    return Requirements(list(requires.tags), requires.memory_mb, requires.cpu)


def queueing(
    task: TimelessTask,
) -> tuple[str, int, str | None, dict[str, str] | None, str | None, int | None]:
    """Return a task's queue, priority, name, labels, concurrency key and its limit, as stored."""
    limit = task.concurrency
    key = (None, None) if limit is None else (limit.key, limit.limit)
    return task.queue, task.priority, task.name, task.labels or None, *key
