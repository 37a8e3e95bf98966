"""Calendars: named lists of dates on which schedules that name them do not run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime

import asyncpg

from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Database
from mainspring.postgres.rows import read_row, read_rows
from mainspring.store.answers import BeforeCommit

SQL = queries.load("calendars")


@dataclass(frozen=True, slots=True)
class StoredCalendar:
    """A calendar as it was found."""

    name: str
    rev: int
    dates: list[date]
    updated_at: datetime


class CalendarStore:
    """Calendars of every tenant."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self,
        tenant_id: int,
        name: str,
        dates: Sequence[date],
        conclude: BeforeCommit[StoredCalendar],
    ) -> StoredCalendar | None:
        """None: the name is taken."""

        async def work(connection: asyncpg.Connection) -> StoredCalendar | None:
            row = await connection.fetchrow(
                *SQL["create_calendar"](tenant_id=tenant_id, name=name, dates=list(dates))
            )
            if row is None:
                return None
            made = read_row(StoredCalendar, row)
            await conclude(connection, made)
            return made

        return await self._database.transact(work)

    async def replace(
        self,
        tenant_id: int,
        name: str,
        dates: Sequence[date],
        check: Callable[[StoredCalendar], None],
    ) -> StoredCalendar | None:
        """Give a calendar other dates, if `check` has nothing against it. None: there is none."""

        async def work(connection: asyncpg.Connection) -> StoredCalendar | None:
            old = await connection.fetchrow(*SQL["lock_calendar"](tenant_id=tenant_id, name=name))
            if old is None:
                return None
            check(read_row(StoredCalendar, old))
            row = await connection.fetchrow(
                *SQL["change_calendar"](tenant_id=tenant_id, name=name, dates=list(dates))
            )
            return read_row(StoredCalendar, row) if row else None

        return await self._database.transact(work)

    async def get(self, tenant_id: int, name: str) -> StoredCalendar | None:
        row = await self._database.fetch_row(*SQL["get_calendar"](tenant_id=tenant_id, name=name))
        return read_row(StoredCalendar, row) if row else None

    async def page(self, tenant_id: int, *, after: str, limit: int) -> Sequence[StoredCalendar]:
        """In the order of their names."""
        rows = await self._database.fetch(
            *SQL["list_calendars"](tenant_id=tenant_id, after=after, limit=limit)
        )
        return read_rows(StoredCalendar, rows)

    async def dates(self, tenant_id: int, names: Sequence[str]) -> dict[str, list[date]]:
        """The dates of those calendars that exist."""
        if not names:
            return {}
        rows = await self._database.fetch(
            *SQL["calendar_dates"](tenant_id=tenant_id, names=list(names))
        )
        return {row["name"]: row["dates"] for row in rows}

    async def delete(self, tenant_id: int, name: str) -> bool:
        """False: there is none, or a schedule names it."""
        row = await self._database.fetch_row(
            *SQL["delete_calendar"](tenant_id=tenant_id, name=name)
        )
        return row is not None
