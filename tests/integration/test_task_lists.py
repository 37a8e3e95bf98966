"""Lists of tasks: each filter finds what it means, at once, among however many others."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainspring.domain.ids import TaskIds
from mainspring.domain.task import TaskState
from mainspring.postgres.database import Database, DatabaseOptions
from mainspring.store.keys import KeyStore
from mainspring.store.lists import paging
from mainspring.store.lists.index_paths import INDEXES, TaskFilter
from mainspring.store.tasks import TaskStore
from mainspring.store.upkeep.housekeeping import HousekeepingStore
from support.lists import Row, matches, write_rows

NOW = datetime.now(UTC).replace(microsecond=0)
IDS = [UUID(int=number) for number in range(1, 4)]
NAMES = ("a", "A", "\u00e9", "b' OR true --")
MANY = 50_000

# A filter that names one task among many, and that task.
RARE: dict[str, tuple[TaskFilter, dict[str, Any]]] = {
    "name": (TaskFilter(name="rare"), {"name": "rare"}),
    "queue": (TaskFilter(queue="rare"), {"queue": "rare"}),
    "failed": (TaskFilter(state="failed"), {"state": "failed"}),
    "paused": (TaskFilter(state="paused"), {"state": "paused"}),
    "schedule": (TaskFilter(schedule_id=IDS[0]), {"schedule_id": IDS[0]}),
    "run": (TaskFilter(workflow_run_id=IDS[0]), {"workflow_run_id": IDS[0]}),
    "name and state": (TaskFilter(name="common", state="expired"), {"state": "expired"}),
    "state and name": (TaskFilter(name="rare", state="completed"), {"name": "rare"}),
    "queue and label": (TaskFilter(queue="rare", labels={"of": "all"}), {"queue": "rare"}),
    "unfinished queue": (
        TaskFilter(queue="unfinished", state="scheduled"),
        {"queue": "unfinished", "state": "scheduled"},
    ),
}
# As above, by indexes that give no order: they are used after a few thousand rows.
RARE_AND_UNORDERED: dict[str, tuple[TaskFilter, dict[str, Any]]] = {
    "label": (TaskFilter(labels={"of": "one"}), {"labels": {"of": "one", "k": "1"}}),
    "running": (TaskFilter(state="running"), {"state": "running"}),
    "due long ago": (
        TaskFilter(due_before=NOW - timedelta(days=9)),
        {"due": NOW - timedelta(days=10)},
    ),
    "due far ahead": (
        TaskFilter(due_after=NOW + timedelta(days=300), state="scheduled"),
        {"due": NOW + timedelta(days=301), "state": "scheduled"},
    ),
    "due far ahead and paused": (
        TaskFilter(due_after=NOW + timedelta(days=400), state="paused", name="common"),
        {"due": NOW + timedelta(days=401), "state": "paused"},
    ),
    "label and state": (
        TaskFilter(labels={"of": "two"}, state="scheduled"),
        {"labels": {"of": "two"}, "state": "scheduled"},
    ),
}


class CountingDatabase(Database):
    """Knows how many rows the statements of lists have read by the plans that are kept, and how
    many pages of the database by plans that are made anew, as behind a pooler."""

    rows = 0
    buffers = 0

    async def fetch(
        self, sql: str, *args: object, time_limit: float | None = None
    ) -> Sequence[asyncpg.Record]:
        if not sql.startswith("-- list_tasks"):
            return await super().fetch(sql, *args, time_limit=time_limit)

        async def work(connection: asyncpg.Connection) -> Sequence[asyncpg.Record]:
            before = await connection.fetchval(_ROWS_READ)
            found: Sequence[asyncpg.Record] = await connection.fetch(sql, *args)
            self.rows += await connection.fetchval(_ROWS_READ) - before
            told = await connection.fetchval(
                f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", *args
            )
            plan = msgspec.json.decode(told)[0]["Plan"]
            self.buffers += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
            return found

        return await self.transact(work)


_ROWS_READ = """
SELECT sum(coalesce(idx_tup_fetch, 0) + seq_tup_read)::bigint
FROM pg_stat_xact_user_tables WHERE relname ~ '^task'
"""


_SUMMARIZE = """
SELECT brin_summarize_new_values(inhrelid) FROM pg_inherits
WHERE inhparent = 'task_history_due'::regclass
"""


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[CountingDatabase]:
    opened = CountingDatabase(DatabaseOptions(database_url, connections=2))
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def tenant_id(database: Database) -> int:
    return await KeyStore(database).ensure_tenant("acme")


@pytest.fixture
async def many_tasks(database: Database, tenant_id: int) -> list[Row]:
    """Very many tasks of one kind, of today and of days before, and a few that are oldest."""
    await HousekeepingStore(database).make_partitions(days_ahead=1)
    ids = TaskIds(Random(1))
    then = NOW - timedelta(days=3)
    common: dict[str, Any] = {"name": "common", "labels": {"of": "all"}}
    rare = [
        Row(ids.make(then.timestamp() + number), then, **{"due": then, **common, **traits})
        for number, (_, traits) in enumerate((RARE | RARE_AND_UNORDERED).values())
    ]
    times = [then + timedelta(minutes=1, seconds=4 * number) for number in range(MANY)]
    many = [
        Row(ids.make(at.timestamp()), at, at, state, **common)
        for number, at in enumerate(times)
        for state in ["scheduled" if number % 10 == 0 else "completed"]
    ]
    await write_rows(database, tenant_id, [*rare, *many])
    await database.fetch("VACUUM (ANALYZE) tasks")
    await database.fetch("VACUUM (ANALYZE) task_history")
    # Vacuum leaves out the last blocks of a partition; how many these are depends on the hour.
    await database.fetch(_SUMMARIZE)
    return rare


async def walk(
    tasks: TaskStore, tenant_id: int, where: TaskFilter, limit: int, pages: int = 1000
) -> list[UUID]:
    """All that a list shows, page by page."""
    found: list[UUID] = []
    before = None
    for _ in range(pages):
        page = await tasks.list(tenant_id, where, before=before, limit=limit)
        found += [task.id for task in page.items]
        before = page.next_before
        if before is None:
            return found
    raise AssertionError("the list has no end")


async def test_what_is_rare_is_found_in_one_look_among_many(
    database: CountingDatabase,
    tenant_id: int,
    many_tasks: list[Row],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paging, "TIME_LIMIT", -1)
    tasks = TaskStore(database, near=30)
    for words, (where, _) in RARE.items():
        wanted = [row.id for row in reversed(many_tasks) if matches(row, where)]
        database.rows = database.buffers = 0
        page = await tasks.list(tenant_id, where, before=None, limit=50)
        assert ([task.id for task in page.items], page.next_before) == (wanted, None), words
        assert database.rows < 500, words
        assert database.buffers < 600, words


async def test_shortcuts_find_the_rare_without_an_order(
    database: CountingDatabase,
    tenant_id: int,
    many_tasks: list[Row],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paging, "TIME_LIMIT", 60)  # or a slow machine is shown a short page
    tasks = TaskStore(database, near=30)
    for words, (where, _) in RARE_AND_UNORDERED.items():
        wanted = [row.id for row in reversed(many_tasks) if matches(row, where)]
        database.rows = database.buffers = 0
        page = await tasks.list(tenant_id, where, before=None, limit=50)
        assert wanted, words
        assert ([task.id for task in page.items], page.next_before) == (wanted, None), words
        # Due times are known by blocks of history, one of which has some 7,000 of these small rows.
        assert database.rows < 5500 + 7500 * words.startswith("due"), words


async def test_a_label_of_another_tenant_costs_nothing(
    database: CountingDatabase, tenant_id: int, many_tasks: list[Row]
) -> None:
    other = await KeyStore(database).ensure_tenant("other")
    await write_rows(database, other, [replace(row, labels={"of": "all"}) for row in many_tasks])
    tasks = TaskStore(database, near=30)
    await tasks.list(other, TaskFilter(labels={"of": "one"}), before=None, limit=50)
    assert database.rows < 100


async def test_what_is_nowhere_costs_next_to_nothing(
    database: CountingDatabase, tenant_id: int, many_tasks: list[Row]
) -> None:
    tasks = TaskStore(database, near=30)
    for where in (
        TaskFilter(name="none"),
        TaskFilter(state="skipped"),
        TaskFilter(state="blocked"),
        TaskFilter(queue="none", state="completed"),
        TaskFilter(schedule_id=IDS[2]),
        TaskFilter(workflow_run_id=IDS[2]),
    ):
        database.rows = database.buffers = 0
        page = await tasks.list(tenant_id, where, before=None, limit=50)
        assert (page.items, page.next_before) == ([], None), where
        assert database.rows < 20, where
        assert database.buffers < 100, where


async def test_a_filter_without_an_index_finds_it_all_the_same(
    database: CountingDatabase, tenant_id: int, many_tasks: list[Row]
) -> None:
    for where in (TaskFilter(queue="rare"), TaskFilter(due_before=NOW - timedelta(days=3))):
        found = await walk(TaskStore(database, near=30), tenant_id, where, limit=50)
        wanted = [row.id for row in many_tasks if matches(row, where)]
        assert found == wanted[::-1]


async def test_full_pages_of_many_read_little(
    database: CountingDatabase, tenant_id: int, many_tasks: list[Row]
) -> None:
    tasks = TaskStore(database, near=30)
    for where in (TaskFilter(), TaskFilter(name="common"), TaskFilter(state="completed")):
        before = None
        for _ in range(3):
            database.rows = database.buffers = 0
            page = await tasks.list(tenant_id, where, before=before, limit=50)
            assert len(page.items) == 50
            assert database.rows < 600, where
            assert database.buffers < 1000, where
            before = page.next_before


async def test_lists_are_right_before_their_indexes_are_built(
    database: CountingDatabase, tenant_id: int, many_tasks: list[Row]
) -> None:
    for index in INDEXES:
        await database.fetch(f"DROP INDEX {index}")
    tasks = TaskStore(database, near=30)
    for where, _ in RARE.values():
        wanted = [row.id for row in reversed(many_tasks) if matches(row, where)]
        assert await walk(tasks, tenant_id, where, limit=50) == wanted


filters = st.builds(
    TaskFilter,
    state=st.none() | st.sampled_from([state.value for state in TaskState]),
    queue=st.none() | st.sampled_from(("default", "mails", "none")),
    name=st.none() | st.sampled_from((*NAMES, "none")),
    labels=st.none() | st.sampled_from(({"k": "1"}, {"k": "2", "l": "1"}, {"none": "0"})),
    due_after=st.none() | st.integers(-2, 2).map(lambda days: NOW + timedelta(days)),
    due_before=st.none() | st.integers(-2, 2).map(lambda days: NOW + timedelta(days)),
    schedule_id=st.none() | st.sampled_from(IDS),
    workflow_run_id=st.none() | st.sampled_from(IDS),
)


def _only(made: TaskFilter, kept: Sequence[str]) -> TaskFilter:
    return TaskFilter(**{field: getattr(made, field) for field in kept})


# One or two that are named, and not all at once: most combinations of all match nothing.
PAIRS = (
    "state", "queue", "name", "schedule_id", "workflow_run_id", "labels", "name state",
    "queue state", "queue name", "due_after due_before", "state schedule_id",
    "workflow_run_id name", "labels queue",
)  # fmt: skip
some_filters = filters | st.builds(_only, filters, st.sampled_from(PAIRS).map(str.split))


def random_rows(seed: int, count: int) -> list[Row]:
    rng, ids = Random(seed), TaskIds(Random(seed))
    rows = []
    for number in range(count):
        created = NOW - timedelta(days=2, seconds=-number)
        due = NOW + timedelta(days=rng.randint(-2, 2), seconds=rng.randint(0, 1))
        state = rng.choice([state.value for state in TaskState])
        rows.append(
            Row(
                ids.make(created.timestamp()),
                created,
                min(due, NOW) if state == TaskState.RUNNING else due,  # nothing starts early
                state,
                rng.choice(("default", "default", "mails")),
                rng.choice((None, None, *NAMES)),
                rng.choice((None, {}, {"k": "1"}, {"k": "2", "l": "1"})),
                rng.choice((None, None, *IDS[:2])),
                rng.choice((None, None, *IDS[:2])),
            )
        )
    return rows


def test_every_combination_of_filters_shows_what_it_means(database_url: str) -> None:
    with asyncio.Runner() as runner, ExitStack() as stack:
        database = Database(DatabaseOptions(database_url, connections=2))
        runner.run(database.open())
        stack.callback(lambda: runner.run(database.close()))
        tenant_id, rows = runner.run(_two_tenants(database))

        @settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(
            where=some_filters,
            limit=st.sampled_from((1, 3, 50)),
            scan=st.sampled_from((1, 7, 20_000)),
            timeout=st.sampled_from((-1.0, 5.0)),
            scans=st.sampled_from(((), (7,), (200, 5000))),
        )
        def explore(
            where: TaskFilter, limit: int, scan: int, timeout: float, scans: tuple[int, ...]
        ) -> None:
            wanted = [row for row in reversed(rows) if matches(row, where)]
            tasks = TaskStore(database, near=30, scan=scan)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(paging, "TIME_LIMIT", timeout)
                patch.setattr(paging, "FIRST_SCANS", scans)
                found = runner.run(walk(tasks, tenant_id, where, limit))
                assert found == [row.id for row in wanted]
                first = runner.run(tasks.list(tenant_id, where, before=None, limit=limit))
            shown = [(t.id, t.state, t.queue, t.name, t.labels) for t in first.items]
            expected = [(r.id, r.state, r.queue, r.name, r.labels) for r in wanted[:limit]]
            # Nobody who reads one page only takes the list for empty.
            assert shown == expected if timeout > 0 else shown == expected[: len(shown)]

        explore()


async def _two_tenants(database: Database) -> tuple[int, list[Row]]:
    rows = random_rows(1, 120)
    tenant_id = await KeyStore(database).ensure_tenant("acme")
    await write_rows(database, tenant_id, rows)
    other = await KeyStore(database).ensure_tenant("other")
    await write_rows(database, other, random_rows(2, 60))
    return tenant_id, rows
