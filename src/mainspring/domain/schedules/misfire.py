"""Decisions about occurrences: fired or not, and why. Pure functions, no clock, no store.

An occurrence that is decided on time is simply fired, if the overlap policy lets it. Of those that
came too late (an outage, a long pause of the database) the misfire policy chooses; what it chooses
passes the overlap policy like any other. Each decision has a reason, and neighbours with the same
fate share one line of the ledger.
"""

from collections.abc import Sequence
from typing import NamedTuple

from mainspring.domain.schedules.definition import Backlog, ScheduleDefinition, Span, Timetable
from mainspring.domain.schedules.policies import Decision

MOST_ON_TIME = 2
_LEAST_TOLERANCE = 1.0
_MOST_TOLERANCE = 30.0


class Ruling(NamedTuple):
    """One line of the ledger: these occurrences, this decision."""

    span: Span
    decision: Decision
    reason: str


class BacklogDecision(NamedTuple):
    """All rulings on a backlog, in order, and how many unfinished tasks are to be cancelled."""

    rulings: tuple[Ruling, ...]
    cancel: int = 0

    @property
    def fired(self) -> tuple[float, ...]:
        return tuple(r.span.first for r in self.rulings if r.decision is Decision.FIRED)


class DueDecision(NamedTuple):
    """The decision about everything that is due of a schedule, and how it goes on."""

    verdict: BacklogDecision
    decided_to: float
    next: float | None


def decide_due(
    definition: ScheduleDefinition,
    table: Timetable,
    *,
    first: float,
    decided_to: float,
    now: float,
    unfinished: int,
    runs: int,
) -> DueDecision:
    """Decide on what is due since `decided_to`, of which `first` is the first nominal time."""
    backlog, following = _due(definition, table, first, decided_to, now)
    left = None if definition.max_runs is None else max(0, definition.max_runs - runs)
    last = backlog.recent[-1] if backlog.recent else None
    gap = None if following is None or last is None else following - last
    verdict = rule(
        definition,
        backlog,
        now=now,
        tolerated=tolerance(gap),
        unfinished=unfinished,
        runs_left=left,
    )
    if left is not None and left <= len(verdict.fired):
        following = None
    elif following is not None and following <= backlog.until:
        following = table.next(backlog.until)
    return DueDecision(verdict, max(backlog.until, decided_to), following)


def _due(
    definition: ScheduleDefinition, table: Timetable, first: float, decided_to: float, now: float
) -> tuple[Backlog, float | None]:
    """Return what is due, and what comes next. Mostly one occurrence is due, known already."""
    following = table.next(first)
    alone = first <= now and (following is None or following > now)
    if alone and not (table.excludes(first) or table.excludes(now)):
        return Backlog((), (), (first,), now), following
    cut = now - definition.misfire.window
    backlog = table.backlog(decided_to, now, most=wanted(definition), cut=cut)
    return backlog, table.next(backlog.until)


def tolerance(gap: float | None) -> float:
    """Return how late a decision may be and count as on time: a tenth of the time to the next
    occurrence, within bounds. A failover must not cost a daily run, and an outage of a per-second
    schedule must not end in a burst that counts as punctual."""
    if gap is None:
        return _MOST_TOLERANCE
    return min(max(gap / 10, _LEAST_TOLERANCE), _MOST_TOLERANCE)


def wanted(definition: ScheduleDefinition) -> int:
    """Return how many of a backlog have to be known one by one."""
    return definition.misfire.cap + MOST_ON_TIME


def rule(
    definition: ScheduleDefinition,
    backlog: Backlog,
    *,
    now: float,
    tolerated: float,
    unfinished: int,
    runs_left: int | None = None,
) -> BacklogDecision:
    """Decide on a backlog. `unfinished` counts the schedule's tasks that are not finished yet."""
    candidates, rulings = _after_misfire(definition, backlog, now, tolerated)
    if runs_left is not None:
        candidates = candidates[:runs_left]
    chosen, refused, cancel = _after_overlap(definition, candidates, unfinished)
    rulings += [Ruling(s, Decision.SKIPPED_EXCLUDED, "an excluded date") for s in backlog.excluded]
    rulings += refused
    late = now - tolerated
    rulings += [
        Ruling(Span(t, t, 1), Decision.FIRED, "late, made up for" if t < late else "on time")
        for t in chosen
    ]
    return BacklogDecision(_joined(rulings), cancel)


def _after_misfire(
    definition: ScheduleDefinition, backlog: Backlog, now: float, tolerated: float
) -> tuple[list[float], list[Ruling]]:
    """Return the occurrences that may run by the misfire policy, and rulings on the others."""
    misfire = definition.misfire
    punctual = [t for t in backlog.recent if now - t <= tolerated]
    late = [t for t in backlog.recent if now - t > tolerated]
    spans = [*backlog.older, *(Span(t, t, 1) for t in late)]
    if not spans:
        return punctual, []
    oldest = now - misfire.window
    outside = [span for span in spans if span.last < oldest]
    inside = [span for span in spans if span.last >= oldest]
    rulings = [
        Ruling(span, Decision.SKIPPED_MISFIRE, f"later than the window of {misfire.window:g} s")
        for span in outside
    ]
    if misfire.policy == "skip":
        rulings += [
            Ruling(span, Decision.SKIPPED_MISFIRE, "its time had passed") for span in inside
        ]
        return punctual, rulings
    if misfire.policy == "all":
        kept = [t for t in late if t >= oldest][-misfire.cap :]
        over = [s for s in inside if not kept or s.last < kept[0]]
        reason = f"more than {misfire.cap} had been missed"
        rulings += [Ruling(span, Decision.SKIPPED_MISFIRE, reason) for span in over]
        return kept + punctual, rulings
    latest = [t for t in backlog.recent if t >= oldest or now - t <= tolerated][-1:]
    rulings += [
        Ruling(span, Decision.COALESCED, "a later occurrence stands for it")
        for span in [*inside, *(Span(t, t, 1) for t in punctual)]
        if span.last not in latest
    ]
    return latest, rulings


def _after_overlap(
    definition: ScheduleDefinition, candidates: Sequence[float], unfinished: int
) -> tuple[Sequence[float], list[Ruling], int]:
    """Return which candidates run, rulings on the others, and how many tasks are cancelled."""
    limit = definition.max_running
    if definition.overlap == "allow":
        return candidates, [], 0
    if definition.overlap == "cancel_running":
        chosen, refused = candidates[-limit:], candidates[:-limit]
        reason = "a later occurrence took its place"
        cancel = max(0, unfinished + len(chosen) - limit) if chosen else 0
        return chosen, _refused(refused, reason), min(cancel, unfinished)
    reason = f"{max(unfinished, limit)} of at most {limit} were unfinished"
    if definition.overlap == "queue":
        limit += definition.misfire.cap
        reason = f"{definition.misfire.cap} were waiting already"
    free = max(0, limit - unfinished)
    return candidates[:free], _refused(candidates[free:], reason), 0


def _refused(times: Sequence[float], reason: str) -> list[Ruling]:
    return [Ruling(Span(t, t, 1), Decision.SKIPPED_OVERLAP, reason) for t in times]


def _joined(rulings: Sequence[Ruling]) -> tuple[Ruling, ...]:
    """Sort the rulings, and join neighbours with the same decision, unless it is to fire."""
    joined: list[Ruling] = []
    for ruling in sorted(rulings, key=lambda r: r.span.first):
        before = joined[-1] if joined else None
        if (
            before is None
            or ruling.decision is Decision.FIRED
            or (before.decision, before.reason) != (ruling.decision, ruling.reason)
        ):
            joined.append(ruling)
            continue
        span = Span(before.span.first, ruling.span.last, before.span.size + ruling.span.size)
        joined[-1] = Ruling(span, ruling.decision, ruling.reason)
    return tuple(joined)
