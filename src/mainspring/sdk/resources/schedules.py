"""`client.schedules` and `client.calendars`."""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import date, datetime
from hashlib import sha256
from typing import Any, Unpack
from uuid import UUID

from msgspec import field

from mainspring.errors import Conflict, NotFound, PreconditionFailed
from mainspring.sdk.encoding import encode, present, with_offset, with_offsets
from mainspring.sdk.resources.base import ApiResource, Page
from mainspring.sdk.resources.tasks import Task
from mainspring.sdk.sync_async import F, both, each
from mainspring.sdk.targets import (
    DEFINITION,
    OWNER,
    ScheduleChanges,
    ScheduleFields,
    labels_of,
    version_in,
)
from mainspring.wire.schedules import (
    BackfilledOut,
    CalendarOut,
    OccurrenceOut,
    PreviewOut,
    ScheduleOut,
    Upcoming,
)

Times = list[datetime]

_MOST_ATTEMPTS = 10


class Schedule(ScheduleOut, kw_only=True):
    """A schedule: when, by which policies, and which task."""

    task: Any = None
    input: Any = None
    misfire: Any = field(default_factory=dict)
    dst: Any = field(default_factory=dict)
    etag: str | None = None


class Occurrence(OccurrenceOut, kw_only=True):
    """One decision about one nominal time, or about a range of them."""

    decision: Any


class Calendar(CalendarOut, kw_only=True):
    """A named list of dates on which schedules do not run."""

    etag: str | None = None


class Schedules(ApiResource[F]):
    """Recurring definitions that produce tasks."""

    _path = "/v1/schedules"

    @both
    async def create(
        self,
        name: str,
        task: Mapping[str, Any],
        *,
        idempotency_key: str | None = None,
        **fields: Unpack[ScheduleFields],
    ) -> Schedule:
        """Create a schedule. `task` is a task without times: its target, payload and so on."""
        body = {"name": name, "task": task, **with_offsets(fields)}
        return await self._call("POST", self._path, body, answer=Schedule, key=idempotency_key)

    @both
    async def get(self, schedule_id: UUID | str) -> Schedule:
        return await self._call("GET", self._at(schedule_id), answer=Schedule)

    @both
    async def named(self, name: str) -> Schedule | None:
        """Return the schedule of this name, if there is one."""
        return await self._named(name)

    @both
    async def put(
        self, name: str, task: Mapping[str, Any], **fields: Unpack[ScheduleFields]
    ) -> Schedule:
        """Create the schedule of this name, or replace its definition; many may call this at once.
        What an app declares is changed by that app alone, and not by an older version of it."""
        body = {"name": name, "task": dict(task), **with_offsets(fields)}
        digest = sha256(encode(body)).hexdigest()[:16]
        given = task.get("labels") or {}
        body["task"]["labels"] = {**given, DEFINITION: digest}
        for _ in range(_MOST_ATTEMPTS):
            found = await self._named(name)
            if found is not None and labels_of(found.task).get(DEFINITION) == digest:
                return found
            try:
                if found is None:
                    return await self._call("POST", self._path, body, answer=Schedule)
                path = self._at(found.id)
                present = await self._call("GET", path, answer=Schedule)
                labels = labels_of(present.task)
                if labels.get(OWNER) == given.get(OWNER):
                    if version_in(labels) > version_in(given):
                        return present
                    return await self._call(
                        "PUT", path, body, answer=Schedule, if_match=present.etag
                    )
            except (Conflict, PreconditionFailed, NotFound):
                continue  # it was changed meanwhile
            raise Conflict(_not_owned(name, labels.get(OWNER)))
        raise Conflict(f"others keep changing the schedule {name!r}")

    @each
    def list(
        self, *, name: str | None = None, state: str | None = None, limit: int | None = None
    ) -> AsyncIterator[Schedule]:
        """Yield all that match, newest first."""
        query = {"name": name, "state": state, "limit": limit}
        return self._every(self._path, Page[Schedule], query)

    @both
    async def replace(
        self,
        schedule_id: UUID | str,
        name: str,
        task: Mapping[str, Any],
        *,
        if_match: str | None = None,
        **fields: Unpack[ScheduleFields],
    ) -> Schedule:
        """Replace the whole definition."""
        body, path = {"name": name, "task": task, **with_offsets(fields)}, self._at(schedule_id)
        return await self._call("PUT", path, body, answer=Schedule, if_match=if_match)

    @both
    async def edit(
        self,
        schedule_id: UUID | str,
        *,
        if_match: str | None = None,
        **changes: Unpack[ScheduleChanges],
    ) -> Schedule:
        """Change the fields that are given."""
        body, path = with_offsets(changes), self._at(schedule_id)
        return await self._call("PATCH", path, body, answer=Schedule, if_match=if_match)

    @both
    async def delete(self, schedule_id: UUID | str, *, if_match: str | None = None) -> None:
        await self._call("DELETE", self._at(schedule_id), if_match=if_match)

    @both
    async def pause(self, schedule_id: UUID | str) -> Schedule:
        return await self._post(Schedule, schedule_id, "pause")

    @both
    async def resume(self, schedule_id: UUID | str) -> Schedule:
        return await self._post(Schedule, schedule_id, "resume")

    @both
    async def run(self, schedule_id: UUID | str) -> Task:
        """Create a task of it now, besides its timetable."""
        return await self._post(Task, schedule_id, "run")

    @both
    async def backfill(
        self,
        schedule_id: UUID | str,
        start: datetime,
        end: datetime,
        max_running: int | None = None,
    ) -> BackfilledOut:
        """Make the tasks of a past period."""
        times = {"from": with_offset(start), "to": with_offset(end)}
        body, path = times | present(max_running=max_running), self._at(schedule_id, "backfill")
        return await self._call("POST", path, body, answer=BackfilledOut)

    @both
    async def upcoming(self, schedule_id: UUID | str, n: int = 10) -> Times:
        """Return its next times."""
        path = self._at(schedule_id, "upcoming")
        found = await self._call("GET", path, answer=Upcoming, query={"n": n})
        return found.times

    @each
    def occurrences(
        self, schedule_id: UUID | str, *, decision: str | None = None, limit: int | None = None
    ) -> AsyncIterator[Occurrence]:
        """Yield the decisions about its times, newest first."""
        path = self._at(schedule_id, "occurrences")
        query = {"decision": decision, "limit": limit}
        return self._every(path, Page[Occurrence], query)

    @both
    async def preview(self, **fields: Unpack[ScheduleFields]) -> PreviewOut:
        """Return when a schedule would run, without saving it."""
        return await self._call(
            "POST", self._at("preview"), with_offsets(fields), answer=PreviewOut
        )

    async def _named(self, name: str) -> Schedule | None:
        found = await self._call("GET", self._path, answer=Page[Schedule], query={"name": name})
        return next((schedule for schedule in found.items if schedule.name == name), None)


class Calendars(ApiResource[F]):
    """Named lists of dates on which schedules do not run."""

    _path = "/v1/calendars"

    @both
    async def create(self, name: str, dates: Sequence[date | str]) -> Calendar:
        body = {"name": name, "dates": dates}
        return await self._call("POST", self._path, body, answer=Calendar)

    @both
    async def get(self, name: str) -> Calendar:
        return await self._call("GET", self._at(name), answer=Calendar)

    @each
    def list(self, *, limit: int | None = None) -> AsyncIterator[Calendar]:
        """Yield all calendars, by name."""
        return self._every(self._path, Page[Calendar], {"limit": limit})

    @both
    async def replace(
        self, name: str, dates: Sequence[date | str], *, if_match: str | None = None
    ) -> Calendar:
        body, path = {"dates": dates}, self._at(name)
        return await self._call("PUT", path, body, answer=Calendar, if_match=if_match)

    @both
    async def delete(self, name: str) -> None:
        await self._call("DELETE", self._at(name))


def _not_owned(name: str, owner: str | None) -> str:
    whose = "was not declared by an app" if owner is None else f"belongs to the app {owner!r}"
    return f"the schedule {name!r} {whose}: choose another name, or delete it first"
