"""What workers report, and what they are refused: also the answer to a poll whose key has ended."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from msgspec import Raw

from mainspring.domain.execution import Outcome, Report, TaskError
from mainspring.errors import StoreUnavailable
from mainspring.node import node
from mainspring.postgres.database import Database, DatabaseOptions, connect
from mainspring.store.tasks import TaskStore
from support.client import Client
from support.waiting import eventually
from support.workers import LocalNode, open_local_node


@pytest.fixture
async def slow_lease(database_url: str) -> AsyncIterator[LocalNode]:
    """Leases there outlast a fault of the database."""
    async with open_local_node(database_url) as opened:
        yield opened


async def test_a_failure_is_retried_and_ends_as_a_dead_letter(local_node: LocalNode) -> None:
    there = await local_node.create(retry={"max_attempts": 2, "initial": 0.05})
    worker = local_node.worker()
    for attempt in (1, 2):
        (task,) = await worker.lease()
        assert (task["attempt"], task["fence"]) == (attempt, attempt)
        error = {"code": "value-error", "message": "no such row"}
        assert await worker.report(task, status="failed", error=error) == ["accepted"]
    read = await local_node.until(there, "failed")
    assert read["error"] == {"code": "value-error", "message": "no such row"}
    assert (await local_node.client.get(f"/v1/dead-letters/{there}")).status == 200
    assert [t["outcome"] for t in await local_node.executions(there)] == ["failed", "failed"]


async def test_a_workers_word_about_retrying_counts(local_node: LocalNode) -> None:
    never, later = await local_node.create(), await local_node.create()
    worker = local_node.worker()
    tasks: dict[str, dict[str, object]] = {}
    while len(tasks) < 2:
        tasks |= {task["id"]: task for task in await worker.lease()}
    assert await worker.report(tasks[never], status="failed", retryable=False) == ["accepted"]
    assert (await local_node.until(never, "failed"))["error"]["code"] == "failed"
    assert await worker.report(tasks[later], status="failed", retry_after=600) == ["accepted"]
    read = await local_node.task(later)
    assert read["state"] == "scheduled"
    assert read["due_at"] > read["created_at"]


async def test_released_work_goes_to_the_next_and_counts_as_no_failure(
    local_node: LocalNode,
) -> None:
    there = await local_node.create(retry={"max_attempts": 1})
    one, two = local_node.worker("w1"), local_node.worker("w2")
    (task,) = await one.lease()
    assert await one.report(task, status="released") == ["accepted"]
    (again,) = await two.lease()
    assert again["fence"] == 2
    assert await two.report(again) == ["accepted"]
    assert [t["outcome"] for t in await local_node.executions(there)] == ["released", "succeeded"]


async def test_an_error_keeps_what_can_be_stored_of_it(local_node: LocalNode) -> None:
    worker = local_node.worker()
    retry = {"max_attempts": 2, "initial": 0.001}
    for error in ("a\0b", {"code": "x", "message": "a\0b"}):
        there = await local_node.create(retry=retry)
        for _ in range(2):
            (task,) = await worker.lease()
            assert await worker.report(task, status="failed", error=error) == ["accepted"]
        code = "failed" if isinstance(error, str) else "x"
        assert (await local_node.task(there))["error"] == {"code": code, "message": "a\ufffdb"}
        letter = (await local_node.client.get(f"/v1/dead-letters/{there}")).json()
        assert letter["reason"] == "exhausted"


async def test_an_error_that_cannot_be_stored_holds_nobody_up(
    local_node: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should there be something that nobody thought of: the task fails, its neighbours do not."""
    monkeypatch.setattr(TaskError, "__post_init__", lambda _error: None)
    ids = [await local_node.create(retry={"max_attempts": 2, "initial": 0.001}) for _ in range(2)]
    worker = local_node.worker()
    for _ in range(2):
        tasks: dict[str, dict[str, Any]] = {}
        while len(tasks) < 2:
            tasks |= {task["id"]: task for task in await worker.lease()}
        odd, other = (tasks[one] for one in ids)
        for told in await asyncio.gather(
            worker.report(odd, status="failed", error="a\0b"),
            worker.report(other, status="failed", error="plain"),
        ):
            assert told == ["accepted"]
    for one, code in zip(ids, ("unstorable-result", "failed"), strict=True):
        letter = (await local_node.client.get(f"/v1/dead-letters/{one}")).json()
        assert (letter["final_error"]["code"], letter["reason"]) == (code, "exhausted")


async def test_a_fault_of_the_database_that_passes_costs_no_success(
    slow_lease: LocalNode, database_url: str
) -> None:
    """Rights, tables and disks come back; a success that was given up would not."""
    there, worker = await slow_lease.create(), slow_lease.worker()
    (task,) = await worker.lease()

    async def failed() -> bool:
        sample = slow_lease.server.metrics.registry.get_sample_value
        return bool(sample("mainspring_database_errors_total"))

    async with executions_mislaid(database_url):
        telling = asyncio.create_task(worker.report(task, result=7))
        await eventually(failed, within=5, what="the outcome cannot be written")
    assert await telling == ["accepted"]
    read = await slow_lease.task(there)
    assert (read["state"], read["result"]) == ("completed", 7)


async def test_completing_a_task_does_not_hang_without_the_database(
    slow_lease: LocalNode, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "_CONCLUDED_WITHIN", 0.2)
    there = await slow_lease.create()
    await slow_lease.worker().lease()
    database = Database(DatabaseOptions(database_url, connections=1))
    await database.open()
    tenant = await slow_lease.server.keys.ensure_tenant("workshop")
    running = await TaskStore(database, near=30).running(tenant, UUID(there))
    await database.close()
    assert running is not None
    report = Report(running, Outcome.SUCCEEDED, running.picked, running.picked)
    async with executions_mislaid(database_url), asyncio.timeout(5):
        with pytest.raises(StoreUnavailable):
            await slow_lease.server.node.conclude(report)
    assert (await slow_lease.until(there, "completed"))["attempts"] == 1, "it was not thrown away"


@asynccontextmanager
async def executions_mislaid(database_url: str) -> AsyncIterator[None]:
    """For a while no outcome can be written."""
    operator = await connect(DatabaseOptions(database_url))
    await operator.execute("ALTER TABLE executions RENAME TO mislaid")
    try:
        yield
    finally:
        await operator.execute("ALTER TABLE mislaid RENAME TO executions")
        await operator.close()


async def test_a_repeated_report_is_accepted_and_changes_nothing(
    local_node: LocalNode,
) -> None:
    there = await local_node.create()
    worker = local_node.worker()
    (task,) = await worker.lease()
    verdicts = await asyncio.gather(*(worker.report(task, result=n) for n in range(5)))
    assert verdicts == [["accepted"]] * 5
    assert len(await local_node.executions(there)) == 1
    stranger = {"id": "00000000-0000-7000-8000-000000000000", "fence": 1}
    assert await worker.report(stranger, {**task, "fence": 7}) == ["unknown", "fenced"]


@pytest.mark.parametrize("first", ["failed", "succeeded", "released"])
async def test_of_two_reports_of_an_execution_the_first_counts(
    local_node: LocalNode, first: str
) -> None:
    there = await local_node.create(retry={"initial": 60})
    worker = local_node.worker()
    (task,) = await worker.lease()
    name = {"id": task["id"], "fence": task["fence"]}
    statuses = [first, "succeeded", "failed", first]
    picked = datetime.fromisoformat(task["lease_until"]) - timedelta(seconds=1)
    ends = [(picked + timedelta(microseconds=100 * n)).isoformat() for n in range(4)]
    told = {
        "outcomes": [
            {**name, "status": status, "finished_at": end}
            for status, end in zip(statuses, ends, strict=True)
        ]
    }
    answer = (await local_node.client.post("/v1/leases/report", told)).json()
    judged = [outcome["status"] for outcome in answer["outcomes"]]
    assert judged == ["accepted" if status == first else "fenced" for status in statuses]
    assert [t["outcome"] for t in await local_node.executions(there)] == [first]
    assert (await local_node.task(there))["state"] == (
        "completed" if first == "succeeded" else "scheduled"
    )


async def test_an_old_execution_is_fenced_and_the_present_one_accepted(
    local_node: LocalNode,
) -> None:
    there = await local_node.create()
    worker = local_node.worker()
    (old,) = await worker.lease()
    assert await worker.lease(wait=10) == [], "it was silent: it has to ask again"
    (task,) = await worker.lease(wait=10)
    assert (old["fence"], task["fence"]) == (1, 2), "the first lease ran out"
    assert await worker.report(old, task) == ["fenced", "accepted"]
    assert [t["outcome"] for t in await local_node.executions(there)] == ["lost", "succeeded"]


async def test_a_timeout_that_is_reported_again_is_accepted_again(local_node: LocalNode) -> None:
    there = await local_node.create(retry={"max_attempts": 1})
    worker = local_node.worker()
    (task,) = await worker.lease()
    error = {"code": "timeout", "message": "too slow"}
    for _ in range(2):
        assert await worker.report(task, status="failed", error=error) == ["accepted"]
    assert [t["outcome"] for t in await local_node.executions(there)] == ["timed_out"]
    assert await worker.report(task) == ["fenced"], "it was not done in time"


# --- refusals ---------------------------------------------------------------------------------


async def test_a_contrary_later_report_is_fenced(local_node: LocalNode) -> None:
    """Whether or not there is a newer execution by then."""
    there = await local_node.create(retry={"initial": 0, "jitter": 0})
    worker, other = local_node.worker(), local_node.worker("w2")
    (task,) = await worker.lease()
    assert await worker.report(task, status="failed") == ["accepted"]
    assert await worker.report(task) == ["fenced"]
    (again,) = await other.lease()
    assert await worker.report(task, result="stale") == ["fenced"]
    assert await worker.report(task, status="failed") == ["accepted"], "the same was heard before"
    assert await other.report(again, result="fresh") == ["accepted"]
    assert await other.report(again, status="failed") == ["fenced"]
    assert (await local_node.task(there))["result"] == "fresh"


async def test_numbers_that_nobody_can_read_are_refused(local_node: LocalNode) -> None:
    await local_node.create()
    worker = local_node.worker()
    (task,) = await worker.lease()
    held, infinite = {"id": task["id"], "fence": 1}, Raw(b"[1e999]")
    told = {"outcomes": [{**held, "status": "succeeded", "result": infinite}]}
    answer = await local_node.client.post("/v1/leases/report", told)
    assert (answer.status, answer.json()["errors"][0]["pointer"]) == (422, "/outcomes/0/result")
    beat = {"worker": worker.name, "incarnation": worker.incarnation}
    running = [{**held, "progress": infinite}]
    answer = await local_node.client.post("/v1/leases/heartbeat", {**beat, "running": running})
    assert (answer.status, answer.json()["errors"][0]["pointer"]) == (422, "/running/0/progress")
    assert await worker.report(task) == ["accepted"]


async def test_a_key_that_is_revoked_ends_the_polls_under_it(local_node: LocalNode) -> None:
    """SCENARIOS 45: within seconds, and what comes then is for others."""
    made = (await local_node.client.post("/v1/keys", {"scopes": ["work"]})).json()
    revoked = Client(local_node.session, local_node.server.url, made["api_key"])
    waiting = asyncio.create_task(
        revoked.post(
            "/v1/leases", {"worker": "w", "incarnation": "1", "handlers": ["work"], "wait": 40}
        )
    )
    steady = asyncio.create_task(local_node.worker("other", handlers=["else"]).lease(wait=40))
    await eventually(local_node.polled_by(2), within=5, what="both wait")
    answer = await local_node.client.call("DELETE", f"/v1/keys/{made['id']}")
    assert answer.status == 204
    async with asyncio.timeout(5):
        assert (await waiting).status == 401
    assert not steady.done()
    there = await local_node.create()
    (task,) = await local_node.worker().lease()
    assert task["id"] == there
    other = await local_node.create("else")
    assert [task["id"] for task in await steady] == [other]
