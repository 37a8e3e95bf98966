"""Workers at one node: leases, heartbeats, reports, and what happens when they stop coming."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from mainspring.domain.execution import TaskError
from support.waiting import eventually
from support.workers import Shop, opened_shop, work


@pytest.fixture
async def shop(database_url: str) -> AsyncIterator[Shop]:
    async with opened_shop(database_url, worker_lease=1.0) as opened:
        yield opened


async def test_a_task_is_leased_reported_and_read(shop: Shop) -> None:
    created = await shop.create(payload={"n": 1}, labels={"team": "a"}, timeout=60)
    worker = shop.worker()
    (task,) = await worker.lease()
    assert task["id"] == created
    assert (task["fence"], task["attempt"], task["timeout"]) == (1, 1, 60)
    assert task["target"] == {"type": "handler", "name": "work"}
    assert task["payload"] == {"n": 1}
    assert task["context"]["labels"] == {"team": "a"}
    assert (await shop.task(created))["state"] == "running"
    assert await worker.report(task, result={"rows": 12}) == ["accepted"]
    read = await shop.task(created)
    assert (read["state"], read["result"]) == ("completed", {"rows": 12})
    (tried,) = await shop.tries(created)
    assert (tried["worker"], tried["outcome"], tried["fence"]) == ("w1", "succeeded", 1)


async def test_a_step_says_of_which_run_it_is(shop: Shop) -> None:
    steps = [{"id": "load", "needs": [], **work()}]
    made = await shop.client.post("/v1/workflows", {"name": "flow", "steps": steps})
    assert made.status == 201, made.body
    run = (await shop.client.post("/v1/workflows/flow/runs", {})).json()["id"]
    worker = shop.worker()
    (task,) = await worker.lease()
    assert (task["context"]["workflow_run_id"], task["context"]["step"]) == (run, "load")
    assert await worker.report(task) == ["accepted"]


async def test_a_waiting_worker_gets_a_task_at_once(shop: Shop) -> None:
    worker = shop.worker()
    asked = asyncio.create_task(worker.lease(wait=30))
    await asyncio.sleep(0.2)
    loop = asyncio.get_running_loop()
    began = loop.time()
    created = await shop.create()
    (task,) = await asked
    assert task["id"] == created
    assert loop.time() - began < 0.5


async def test_nothing_comes_and_the_answer_is_empty(shop: Shop) -> None:
    assert await shop.worker().lease(wait=0) == []
    assert await shop.worker().lease(wait=0.2) == []


# --- what a worker can run -------------------------------------------------------------------


async def test_a_task_waits_for_a_worker_that_can_run_it(shop: Shop) -> None:
    there = await shop.create("train", queue="slow", requires={"tags": ["gpu"], "memory_mb": 512})
    for offer in (
        {"handlers": ["other"], "queues": ["slow"], "tags": ["gpu"]},
        {"handlers": ["train"], "queues": ["default"], "tags": ["gpu"]},
        {"handlers": ["train"], "queues": ["slow"], "tags": ["fpga"]},
        {"handlers": ["train"], "queues": ["slow"], "tags": ["gpu"], "resources": {"memory_mb": 9}},
    ):
        assert await shop.worker("unfit").lease(wait=0, **offer) == []
    told = (await shop.client.get(f"/v1/tasks/{there}/explain")).json()
    assert told["verdict"] == "no_worker"
    assert (await shop.task(there))["attempts"] == 0
    able = shop.worker("able", handlers=["train"])
    (task,) = await able.lease(queues=["default", "slow"], tags=["gpu", "ssd"])
    assert task["id"] == there
    assert await able.report(task) == ["accepted"]
    late = (await shop.task(there))["lateness"]
    assert late["no_worker"] > 0.05, late


@pytest.mark.parametrize("lanes", [1, 3])
async def test_when_the_last_worker_has_gone_the_tasks_wait_for_one(shop: Shop, lanes: int) -> None:
    worker = shop.worker()
    asked = asyncio.gather(*(worker.lease(wait=20) for _ in range(lanes)))

    async def waits() -> bool:
        return bool((await shop.client.get("/v1/workers")).json()["items"])

    await eventually(waits, within=5, what="the worker waits")
    asked.cancel()
    await asyncio.wait([asked])
    there = await shop.create()

    async def told() -> bool:
        answer = await shop.client.get(f"/v1/tasks/{there}/explain")
        return bool(answer.json()["verdict"] == "no_worker")

    await eventually(told, within=5, what="there is no worker")


async def test_commands_go_to_workers_that_run_commands(shop: Shop) -> None:
    command = {"target": {"type": "command", "argv": ["backup.sh", "--full"]}}
    there = str(await shop.client.create(command))
    assert await shop.worker("plain").lease(wait=0) == []
    (task,) = await shop.worker("runner").lease(commands=True, handlers=[])
    assert (task["id"], task["target"]["argv"]) == (there, ["backup.sh", "--full"])


async def test_a_worker_gets_no_more_than_it_asks_for_and_others_the_rest(shop: Shop) -> None:
    await shop.client.batch([work() for _ in range(7)])
    one, two = shop.worker("w1"), shop.worker("w2")
    got: list[str] = []
    for worker, most in ((one, 4), (two, 2), (one, 4), (two, 2), (one, 4), (two, 2), (two, 2)):
        if len(got) < 7:
            tasks = await worker.lease(most=most)
            assert 1 <= len(tasks) <= most
            got += [task["id"] for task in tasks]
    assert len(set(got)) == len(got) == 7


async def test_what_others_queue_up_is_not_in_the_way(shop: Shop) -> None:
    """A thousand tasks that nobody can run, and one that somebody can."""
    await shop.client.batch([work("nobody", priority=9) for _ in range(1000)])
    there = await shop.create()
    (task,) = await shop.worker().lease()
    assert task["id"] == there


async def test_a_key_and_a_limit_hold_for_workers_too(shop: Shop) -> None:
    worker = shop.worker()
    for _ in range(3):
        await shop.create(concurrency={"key": "k", "limit": 1})
    for _ in range(3):
        (task,) = await worker.lease()
        assert await worker.report(task) == ["accepted"]


# --- reports -----------------------------------------------------------------------------------


async def test_a_failure_is_tried_again_and_ends_as_a_dead_letter(shop: Shop) -> None:
    there = await shop.create(retry={"max_attempts": 2, "initial": 0.05})
    worker = shop.worker()
    for attempt in (1, 2):
        (task,) = await worker.lease()
        assert (task["attempt"], task["fence"]) == (attempt, attempt)
        error = {"code": "value-error", "message": "no such row"}
        assert await worker.report(task, status="failed", error=error) == ["accepted"]
    read = await shop.until(there, "failed")
    assert read["error"] == {"code": "value-error", "message": "no such row"}
    assert (await shop.client.get(f"/v1/dead-letters/{there}")).status == 200
    assert [t["outcome"] for t in await shop.tries(there)] == ["failed", "failed"]


async def test_what_a_worker_says_about_trying_again_counts(shop: Shop) -> None:
    never, later = await shop.create(), await shop.create()
    worker = shop.worker()
    tasks: dict[str, dict[str, object]] = {}
    while len(tasks) < 2:
        tasks |= {task["id"]: task for task in await worker.lease()}
    assert await worker.report(tasks[never], status="failed", retryable=False) == ["accepted"]
    assert (await shop.until(never, "failed"))["error"]["code"] == "failed"
    assert await worker.report(tasks[later], status="failed", retry_after=600) == ["accepted"]
    read = await shop.task(later)
    assert read["state"] == "scheduled"
    assert read["due_at"] > read["created_at"]


async def test_released_work_goes_to_the_next_and_counts_as_no_failure(shop: Shop) -> None:
    there = await shop.create(retry={"max_attempts": 1})
    one, two = shop.worker("w1"), shop.worker("w2")
    (task,) = await one.lease()
    assert await one.report(task, status="released") == ["accepted"]
    (again,) = await two.lease()
    assert again["fence"] == 2
    assert await two.report(again) == ["accepted"]
    assert [t["outcome"] for t in await shop.tries(there)] == ["released", "succeeded"]


async def test_an_error_keeps_what_can_be_stored_of_it(shop: Shop) -> None:
    worker = shop.worker()
    retry = {"max_attempts": 2, "initial": 0.001}
    for error in ("a\0b", {"code": "x", "message": "a\0b"}):
        there = await shop.create(retry=retry)
        for _ in range(2):
            (task,) = await worker.lease()
            assert await worker.report(task, status="failed", error=error) == ["accepted"]
        code = "failed" if isinstance(error, str) else "x"
        assert (await shop.task(there))["error"] == {"code": code, "message": "a\ufffdb"}
        letter = (await shop.client.get(f"/v1/dead-letters/{there}")).json()
        assert letter["reason"] == "exhausted"


async def test_an_error_that_cannot_be_stored_holds_nobody_up(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should there be something that nobody thought of: the task fails, its neighbours do not."""
    monkeypatch.setattr(TaskError, "__post_init__", lambda _error: None)
    ids = [await shop.create(retry={"max_attempts": 2, "initial": 0.001}) for _ in range(2)]
    worker = shop.worker()
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
        letter = (await shop.client.get(f"/v1/dead-letters/{one}")).json()
        assert (letter["final_error"]["code"], letter["reason"]) == (code, "exhausted")


async def test_the_same_report_again_is_accepted_again_and_changes_nothing(shop: Shop) -> None:
    there = await shop.create()
    worker = shop.worker()
    (task,) = await worker.lease()
    verdicts = await asyncio.gather(*(worker.report(task, result=n) for n in range(5)))
    assert verdicts == [["accepted"]] * 5
    assert len(await shop.tries(there)) == 1
    stranger = {"id": "00000000-0000-7000-8000-000000000000", "fence": 1}
    assert await worker.report(stranger, {**task, "fence": 7}) == ["unknown", "fenced"]


@pytest.mark.parametrize("first", ["failed", "succeeded", "released"])
async def test_of_two_reports_of_a_try_in_one_request_the_first_counts(
    shop: Shop, first: str
) -> None:
    there = await shop.create(retry={"initial": 60})
    worker = shop.worker()
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
    answer = (await shop.client.post("/v1/leases/report", told)).json()
    judged = [outcome["status"] for outcome in answer["outcomes"]]
    assert judged == ["accepted" if status == first else "fenced" for status in statuses]
    assert [t["outcome"] for t in await shop.tries(there)] == [first]
    assert (await shop.task(there))["state"] == (
        "completed" if first == "succeeded" else "scheduled"
    )


async def test_an_old_try_is_fenced_beside_the_report_of_the_present_one(shop: Shop) -> None:
    there = await shop.create()
    worker = shop.worker()
    (old,) = await worker.lease()
    assert await worker.lease(wait=10) == [], "it was silent: it has to ask again"
    (task,) = await worker.lease(wait=10)
    assert (old["fence"], task["fence"]) == (1, 2), "the first lease ran out"
    assert await worker.report(old, task) == ["fenced", "accepted"]
    assert [t["outcome"] for t in await shop.tries(there)] == ["lost", "succeeded"]


async def test_a_timeout_that_is_reported_again_is_accepted_again(shop: Shop) -> None:
    there = await shop.create(retry={"max_attempts": 1})
    worker = shop.worker()
    (task,) = await worker.lease()
    error = {"code": "timeout", "message": "too slow"}
    for _ in range(2):
        assert await worker.report(task, status="failed", error=error) == ["accepted"]
    assert [t["outcome"] for t in await shop.tries(there)] == ["timed_out"]
    assert await worker.report(task) == ["fenced"], "it was not done in time"


async def test_a_worker_that_waits_hears_of_a_cancel_at_once(database_url: str) -> None:
    async with opened_shop(database_url, worker_lease=300.0) as shop:
        there = await shop.create()
        worker = shop.worker()
        (task,) = await worker.lease()
        stranger = asyncio.create_task(shop.worker("stranger").lease(wait=20))
        waiting = asyncio.create_task(worker.lease(wait=20))
        await eventually(shop.polled_by(2), within=5, what="both wait")
        await shop.client.post(f"/v1/tasks/{there}/cancel")
        async with asyncio.timeout(5):
            assert await waiting == [], "empty before its time: ask"
        assert (await worker.beat(task))[0]["action"] == "cancel"
        assert not stranger.done()
        stranger.cancel()
        await asyncio.wait([stranger])


# --- losses --------------------------------------------------------------------------------------


async def test_a_worker_that_is_gone_loses_its_tasks_after_the_lease(shop: Shop) -> None:
    """SCENARIOS 13 and 14: the next try is another's, and the sleeper's report is fenced."""
    there = await shop.create()
    sleeper, other = shop.worker("sleeper"), shop.worker("other")
    (task,) = await sleeper.lease()
    (again,) = await other.lease(wait=10)
    assert (again["id"], again["fence"]) == (there, 2)
    assert await sleeper.report(task, result="late") == ["fenced"]
    assert (await sleeper.beat(task))[0]["action"] == "lost"
    assert await other.report(again, result="good") == ["accepted"]
    read = await shop.task(there)
    assert (read["state"], read["result"]) == ("completed", "good")
    tries = await shop.tries(there)
    assert [(t["worker"], t["outcome"]) for t in tries] == [
        ("sleeper", "lost"),
        ("other", "succeeded"),
    ]
    assert tries[0]["error"]["code"] == "lost"
    assert "until its lease ended" in tries[0]["error"]["message"]


async def test_what_a_frozen_worker_loses_does_not_come_back_to_it(shop: Shop) -> None:
    """Its poll is still open, and the first in the line."""
    there = await shop.create()
    frozen, live = shop.worker("frozen"), shop.worker("live")
    assert await frozen.lease()
    forgotten = asyncio.create_task(frozen.lease(wait=20))
    await eventually(shop.polled_by(1), within=5, what="the frozen one waits")
    (again,) = await live.lease(wait=10)
    assert (again["id"], again["fence"]) == (there, 2)
    async with asyncio.timeout(5):
        assert await forgotten == []
    assert await live.report(again) == ["accepted"]
    read = await shop.task(there)
    assert read["lateness"]["worker_queue"] > 0.9, "the time that the frozen one had it"
    assert read["lateness"].get("unattributed", 0.0) < 0.3, read["lateness"]
    assert [t["worker"] for t in await shop.tries(there)] == ["frozen", "live"]


async def test_heartbeats_keep_a_long_task(shop: Shop) -> None:
    there = await shop.create()
    worker = shop.worker()
    (task,) = await worker.lease()
    ends = [task["lease_until"]]
    for step in range(6):
        await asyncio.sleep(0.3)
        (pulse,) = await worker.beat(task, progress={"step": step})
        assert pulse["action"] == "continue"
        ends.append(pulse["lease_until"])
    assert ends == sorted(ends)
    assert (await shop.task(there))["progress"] == {"step": 5}
    assert await worker.report(task) == ["accepted"]
    assert len(await shop.tries(there)) == 1


async def test_a_restart_under_the_same_name_frees_what_was_held_and_revives_nothing(
    database_url: str,
) -> None:
    """SCENARIOS 16, with a lease that would last for minutes."""
    async with opened_shop(database_url, worker_lease=300.0) as shop:
        there = await shop.create()
        old = shop.worker()
        (task,) = await old.lease()
        new = old.restarted()
        loop = asyncio.get_running_loop()
        began = loop.time()
        (again,) = await new.lease(wait=10)
        assert loop.time() - began < 2
        assert (again["id"], again["fence"]) == (there, 2)
        assert (await old.beat(task))[0]["action"] == "lost"
        assert await old.report(task) == ["fenced"]
        refused = await shop.client.post(
            "/v1/leases", {"worker": "w1", "incarnation": old.incarnation, "wait": 0}
        )
        assert refused.status == 409
        assert (await new.beat(again))[0]["action"] == "continue"
        assert (await shop.tries(there))[0]["error"]["message"] == "its worker began anew"
        assert await new.report(again) == ["accepted"]


async def test_what_kills_workers_is_leased_alone_and_then_given_up(database_url: str) -> None:
    """SCENARIOS 17: the third loss, alone, is the last; its neighbours are unharmed."""
    async with opened_shop(database_url, worker_lease=300.0) as shop:
        poison = await shop.create(payload="poison", priority=9)
        neighbours = [await shop.create(payload="good") for _ in range(4)]
        worker = shop.worker()
        for _ in range(2):
            held: set[str] = set()
            while held < {poison, *neighbours}:
                held |= {task["id"] for task in await worker.lease(most=5)}
            worker = worker.restarted()  # kill -9, and the process manager starts it again
        alone: list[list[str]] = []
        for _ in range(30):
            tasks = await worker.lease(most=5, wait=1)
            if not tasks:
                break
            assert all(t["context"]["alone"] for t in tasks)
            alone.append([t["id"] for t in tasks])
            if poison in alone[-1]:
                worker = worker.restarted()
            else:
                assert await worker.lease(most=5, wait=0.3) == []  # it holds one: that is all
                assert await worker.report(*tasks) == ["accepted"]
        assert sorted(alone) == sorted([id] for id in (poison, *neighbours))
        read = await shop.until(poison, "failed")
        assert read["error"]["code"] == "poison"
        letter = (await shop.client.get(f"/v1/dead-letters/{poison}")).json()
        assert [a["outcome"] for a in letter["attempts"]] == ["lost"] * 3
        assert [a["error"]["code"] for a in letter["attempts"]] == ["lost"] * 3
        for neighbour in neighbours:
            assert (await shop.task(neighbour))["state"] == "completed"


async def test_a_report_shows_that_a_task_does_not_kill(database_url: str) -> None:
    async with opened_shop(database_url, worker_lease=300.0) as shop:
        there = await shop.create(retry={"max_attempts": 5, "initial": 0.01})
        worker = shop.worker()
        for _ in range(2):
            assert await worker.lease()
            worker = worker.restarted()
        (task,) = await worker.lease()
        assert task["context"]["alone"]
        assert await worker.report(task, status="failed") == ["accepted"]
        (task,) = await worker.lease()
        assert (task["id"], task["context"]["alone"]) == (there, False)


async def test_the_hard_timeout_ends_what_heartbeats_for_ever(shop: Shop) -> None:
    """SCENARIOS 18."""
    there = await shop.create(timeout=0.5, retry={"max_attempts": 1})
    worker = shop.worker()
    (task,) = await worker.lease()
    actions = []
    for _ in range(40):
        await asyncio.sleep(0.1)
        (pulse,) = await worker.beat(task)
        actions.append(pulse["action"])
        if pulse["action"] == "lost":
            break
    assert actions[-1] == "lost"
    assert set(actions[:-1]) == {"continue"}
    read = await shop.task(there)
    assert (read["state"], read["error"]["code"]) == ("failed", "timeout")
    assert [t["outcome"] for t in await shop.tries(there)] == ["timed_out"]
    assert await worker.report(task) == ["fenced"]


@pytest.mark.parametrize("status", ["failed", "released", "succeeded"])
async def test_a_cancel_is_heard_at_the_next_heartbeat(shop: Shop, status: str) -> None:
    """SCENARIOS 19."""
    there = await shop.create(retry={"max_attempts": 1})
    worker = shop.worker()
    (task,) = await worker.lease()
    assert (await shop.client.post(f"/v1/tasks/{there}/cancel")).status == 200
    assert (await worker.beat(task))[0]["action"] == "cancel"
    assert await worker.report(task, status=status) == ["accepted"]
    state = (await shop.task(there))["state"]
    assert state == ("completed" if status == "succeeded" else "cancelled")


async def test_a_cancelled_task_of_a_worker_that_is_gone_ends_as_cancelled(shop: Shop) -> None:
    there = await shop.create()
    assert await shop.worker().lease()
    await shop.client.post(f"/v1/tasks/{there}/cancel")
    assert (await shop.until(there, "cancelled"))["attempts"] == 1


async def test_a_completion_that_races_the_end_of_the_lease_has_one_outcome(shop: Shop) -> None:
    """SCENARIOS 15."""
    worker, other = shop.worker("w1"), shop.worker("w2")
    for moment in (0.9, 1.0, 1.05, 1.1):
        there = await shop.create()
        (task,) = await worker.lease()
        await asyncio.sleep(moment)
        (verdict,) = await worker.report(task, result="first")
        if verdict == "accepted":
            assert (await shop.task(there))["result"] == "first"
            continue
        assert verdict == "fenced"
        (again,) = await other.lease()
        assert await other.report(again, result="second") == ["accepted"]
        assert (await shop.task(there))["result"] == "second"


async def test_a_node_that_waits_for_less_long_than_it_is_asked_to_says_so(
    database_url: str,
) -> None:
    body = {"worker": "w", "incarnation": "1", "handlers": ["work"], "max": 1}
    async with opened_shop(database_url, longest_poll=0.2) as shop:
        cut = await shop.client.post("/v1/leases", {**body, "wait": 20})
        assert cut.json() == {"tasks": [], "wait": 0.2}
        whole = await shop.client.post("/v1/leases", {**body, "wait": 0.1})
        assert whole.json() == {"tasks": []}


async def test_a_worker_that_hangs_up_leaves_nothing_behind(shop: Shop) -> None:
    """Its poll is forgotten, and what is claimed for it in that moment is released."""
    asked = asyncio.create_task(shop.worker("gone").lease(wait=30))
    await asyncio.sleep(0.1)
    asked.cancel()
    await asyncio.wait([asked])
    there = await shop.create()
    (task,) = await shop.worker("here").lease(wait=3)
    assert task["id"] == there
