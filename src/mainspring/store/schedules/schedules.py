"""Records of schedules and of their ledger."""

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

import msgspec

from mainspring.domain.schedules.definition import (
    ScheduleDefinition,
    Timetable,
    spread_of,
    timetable,
)
from mainspring.domain.schedules.misfire import Ruling
from mainspring.domain.task import TaskSpec
from mainspring.postgres import named_sql as queries

SQL = queries.load("schedules")

_definition = msgspec.json.Decoder(ScheduleDefinition)


class Template(msgspec.Struct, frozen=True):
    """The task that a schedule makes again and again: checked and compiled once."""

    spec: msgspec.Raw
    payload: msgspec.Raw
    capability: str
    queue: str
    priority: int
    name: str | None = None
    labels: dict[str, str] | None = None
    concurrency_key: str | None = None
    concurrency_limit: int | None = None

    @property
    def decoded_spec(self) -> TaskSpec:
        return msgspec.json.decode(self.spec, type=TaskSpec)


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule as it was found, with the database's time of the look."""

    tenant_id: int
    id: UUID
    rev: int
    edition: int
    partition: int
    state: str
    name: str
    definition_bytes: bytes
    template_bytes: bytes
    created_at: datetime
    updated_at: datetime
    decided_to: float
    next: float | None
    last: float | None
    runs: int
    holidays: list[str] | None
    now: float

    @property
    def definition(self) -> ScheduleDefinition:
        return _decode_definition(self.definition_bytes)

    @property
    def template(self) -> Template:
        return _decode_template(self.template_bytes)

    @property
    def timetable(self) -> Timetable:
        return timetable(self.definition, tuple(self.holidays or ()))

    @property
    def offset(self) -> float:
        """Its share of the spread."""
        return spread_of(self.id, self.definition.spread)

    @property
    def passed(self) -> bool:
        """Whether a nominal time has come that is not decided on."""
        return self.next is not None and self.next + self.offset <= self.now

    @property
    def overdue(self) -> float:
        """Seconds by which its next decision is late; 0 when it is not."""
        if self.state != "active" or self.next is None:
            return 0.0
        return max(0.0, self.now - self.next - self.offset)


@dataclass(frozen=True, slots=True)
class StoredOccurrence:
    """A line of the ledger, as it is read."""

    nominal_at: datetime
    to_at: datetime
    attempt: int
    count: int
    decision: str
    reason: str
    task_id: UUID | None
    decided_at: datetime


class OccurrenceEntry(NamedTuple):
    """A line of the ledger, as it is written."""

    schedule: StoredSchedule
    ruling: Ruling
    task_id: UUID | None = None


@lru_cache(8192)
def _decode_definition(data: bytes) -> ScheduleDefinition:
    return _definition.decode(data)


@lru_cache(4096)
def _decode_template(data: bytes) -> Template:
    return msgspec.json.decode(data, type=Template)
