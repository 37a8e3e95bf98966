"""Calendars: named lists of dates on which schedules that name them do not run."""

from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import NamedTuple

import asyncpg

from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Store, transaction
from mainspring.store.answers import BeforeCommit

SQL = queries.load("calendars")


class StoredCalendar(NamedTuple):
    """A calendar as it was found."""

    name: str
    rev: int
    dates: list[date]
    updated_at: datetime


class CalendarStore(Store):
    """Calendars of every tenant."""

    @transaction
    async def create(
        self,
        connection: asyncpg.Connection,
        tenant_id: int,
        name: str,
        dates: Sequence[date],
        conclude: BeforeCommit[StoredCalendar],
    ) -> StoredCalendar | None:
        """Make a calendar. None: the name is taken."""
        made = await SQL["create_calendar"].row(
            connection, StoredCalendar, tenant_id=tenant_id, name=name, dates=list(dates)
        )
        if made is not None:
            await conclude(connection, made)
        return made

    @transaction
    async def replace(
        self,
        connection: asyncpg.Connection,
        tenant_id: int,
        name: str,
        dates: Sequence[date],
        check: Callable[[StoredCalendar], None],
    ) -> StoredCalendar | None:
        """Give a calendar other dates, if `check` has nothing against it. None: there is none."""
        old = await SQL["lock_calendar"].row(
            connection, StoredCalendar, tenant_id=tenant_id, name=name
        )
        if old is None:
            return None
        check(old)
        return await SQL["change_calendar"].row(
            connection, StoredCalendar, tenant_id=tenant_id, name=name, dates=list(dates)
        )

    async def get(self, tenant_id: int, name: str) -> StoredCalendar | None:
        return await SQL["get_calendar"].row(
            self._database, StoredCalendar, tenant_id=tenant_id, name=name
        )

    async def page(self, tenant_id: int, *, after: str, limit: int) -> Sequence[StoredCalendar]:
        """Return calendars in the order of their names."""
        return await SQL["list_calendars"].rows(
            self._database, StoredCalendar, tenant_id=tenant_id, after=after, limit=limit
        )

    async def dates(self, tenant_id: int, names: Sequence[str]) -> dict[str, list[date]]:
        """Return the dates of those calendars that exist."""
        if not names:
            return {}
        rows = await SQL["calendar_dates"].fetch(
            self._database, tenant_id=tenant_id, names=list(names)
        )
        return {row["name"]: row["dates"] for row in rows}

    async def delete(self, tenant_id: int, name: str) -> bool:
        """Delete a calendar. False: there is none, or a schedule names it."""
        return await SQL["delete_calendar"].found(self._database, tenant_id=tenant_id, name=name)
