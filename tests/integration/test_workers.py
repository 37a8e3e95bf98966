"""Workers at one node: leases, heartbeats, reports, and what happens when they stop coming."""

import asyncio
from uuid import uuid4

import pytest

from mainspring.postgres.database import Database
from mainspring.store.workers import WorkerStore
from support.waiting import eventually
from support.workers import LocalNode, open_local_node, work


async def test_a_task_is_leased_reported_and_read(local_node: LocalNode) -> None:
    created = await local_node.create(payload={"n": 1}, labels={"team": "a"}, timeout=60)
    worker = local_node.worker()
    (task,) = await worker.lease()
    assert task["id"] == created
    assert (task["fence"], task["attempt"], task["timeout"]) == (1, 1, 60)
    assert task["target"] == {"type": "handler", "name": "work"}
    assert task["payload"] == {"n": 1}
    assert task["context"]["labels"] == {"team": "a"}
    assert (await local_node.task(created))["state"] == "running"
    assert await worker.report(task, result={"rows": 12}) == ["accepted"]
    read = await local_node.task(created)
    assert (read["state"], read["result"]) == ("completed", {"rows": 12})
    (tried,) = await local_node.executions(created)
    assert (tried["worker"], tried["outcome"], tried["fence"]) == ("w1", "succeeded", 1)


async def test_a_step_says_of_which_run_it_is(local_node: LocalNode) -> None:
    steps = [{"id": "load", "needs": [], **work()}]
    made = await local_node.client.post("/v1/workflows", {"name": "flow", "steps": steps})
    assert made.status == 201, made.body
    run = (await local_node.client.post("/v1/workflows/flow/runs", {})).json()["id"]
    worker = local_node.worker()
    (task,) = await worker.lease()
    assert (task["context"]["workflow_run_id"], task["context"]["step"]) == (run, "load")
    assert await worker.report(task) == ["accepted"]


async def test_a_waiting_worker_gets_a_task_at_once(local_node: LocalNode) -> None:
    worker = local_node.worker()
    asked = asyncio.create_task(worker.lease(wait=30))
    await eventually(local_node.polled_by(1), within=5, what="it waits")
    loop = asyncio.get_running_loop()
    began = loop.time()
    created = await local_node.create()
    (task,) = await asked
    assert task["id"] == created
    assert loop.time() - began < 0.5


async def test_nothing_comes_and_the_answer_is_empty(local_node: LocalNode) -> None:
    assert await local_node.worker().lease(wait=0) == []
    assert await local_node.worker().lease(wait=0.2) == []


# --- what a worker can run -------------------------------------------------------------------


async def test_a_task_waits_for_a_worker_that_can_run_it(local_node: LocalNode) -> None:
    there = await local_node.create(
        "train", queue="slow", requires={"tags": ["gpu"], "memory_mb": 512}
    )
    for offer in (
        {"handlers": ["other"], "queues": ["slow"], "tags": ["gpu"]},
        {"handlers": ["train"], "queues": ["default"], "tags": ["gpu"]},
        {"handlers": ["train"], "queues": ["slow"], "tags": ["fpga"]},
        {"handlers": ["train"], "queues": ["slow"], "tags": ["gpu"], "resources": {"memory_mb": 9}},
    ):
        assert await local_node.worker("unfit").lease(wait=0, **offer) == []
    told = (await local_node.client.get(f"/v1/tasks/{there}/explain")).json()
    assert told["verdict"] == "no_worker"
    assert (await local_node.task(there))["attempts"] == 0
    able = local_node.worker("able", handlers=["train"])
    (task,) = await able.lease(queues=["default", "slow"], tags=["gpu", "ssd"])
    assert task["id"] == there
    assert await able.report(task) == ["accepted"]
    late = (await local_node.task(there))["lateness"]
    assert late["no_worker"] > 0.05, late


@pytest.mark.parametrize("lanes", [1, 3])
async def test_when_the_last_worker_has_gone_the_tasks_wait_for_one(
    local_node: LocalNode, lanes: int
) -> None:
    worker = local_node.worker()
    asked = asyncio.gather(*(worker.lease(wait=20) for _ in range(lanes)))

    async def waits() -> bool:
        return bool((await local_node.client.get("/v1/workers")).json()["items"])

    await eventually(waits, within=5, what="the worker waits")
    asked.cancel()
    await asyncio.wait([asked])
    there = await local_node.create()

    async def told() -> bool:
        answer = await local_node.client.get(f"/v1/tasks/{there}/explain")
        return bool(answer.json()["verdict"] == "no_worker")

    await eventually(told, within=5, what="there is no worker")


async def test_commands_go_to_workers_that_run_commands(local_node: LocalNode) -> None:
    command = {"target": {"type": "command", "argv": ["backup.sh", "--full"]}}
    there = str(await local_node.client.create(command))
    assert await local_node.worker("plain").lease(wait=0) == []
    (task,) = await local_node.worker("runner").lease(commands=True, handlers=[])
    assert (task["id"], task["target"]["argv"]) == (there, ["backup.sh", "--full"])


async def test_a_worker_gets_what_it_asks_for_and_others_the_rest(
    local_node: LocalNode,
) -> None:
    await local_node.client.batch([work() for _ in range(7)])
    one, two = local_node.worker("w1"), local_node.worker("w2")
    got: list[str] = []
    for worker, most in ((one, 4), (two, 2), (one, 4), (two, 2), (one, 4), (two, 2), (two, 2)):
        if len(got) < 7:
            tasks = await worker.lease(most=most)
            assert 1 <= len(tasks) <= most
            got += [task["id"] for task in tasks]
    assert len(set(got)) == len(got) == 7


async def test_what_others_queue_up_is_not_in_the_way(local_node: LocalNode) -> None:
    """A thousand tasks that nobody can run, and one that somebody can."""
    await local_node.client.batch([work("nobody", priority=9) for _ in range(1000)])
    there = await local_node.create()
    (task,) = await local_node.worker().lease()
    assert task["id"] == there


async def test_a_key_and_a_limit_hold_for_workers_too(local_node: LocalNode) -> None:
    worker = local_node.worker()
    for _ in range(3):
        await local_node.create(concurrency={"key": "k", "limit": 1})
    for _ in range(3):
        (task,) = await worker.lease()
        assert await worker.report(task) == ["accepted"]


# --- cancels ---------------------------------------------------------------------------------


async def test_a_polling_worker_learns_of_a_cancel_at_once(patient_node: LocalNode) -> None:
    there = await patient_node.create()
    worker = patient_node.worker()
    (task,) = await worker.lease()
    stranger = asyncio.create_task(patient_node.worker("stranger").lease(wait=20))
    waiting = asyncio.create_task(worker.lease(wait=20))
    await eventually(patient_node.polled_by(2), within=5, what="both wait")
    await patient_node.client.post(f"/v1/tasks/{there}/cancel")
    async with asyncio.timeout(5):
        assert await waiting == [], "empty before its time: ask"
    assert (await worker.beat(task))[0]["action"] == "cancel"
    assert not stranger.done()
    stranger.cancel()
    await asyncio.wait([stranger])


# --- losses --------------------------------------------------------------------------------------


async def test_a_worker_that_is_gone_loses_its_tasks_after_the_lease(local_node: LocalNode) -> None:
    """SCENARIOS 13 and 14: the next execution is another's, and the sleeper's report is fenced."""
    there = await local_node.create()
    sleeper, other = local_node.worker("sleeper"), local_node.worker("other")
    (task,) = await sleeper.lease()
    (again,) = await other.lease(wait=10)
    assert (again["id"], again["fence"]) == (there, 2)
    assert await sleeper.report(task, result="late") == ["fenced"]
    assert (await sleeper.beat(task))[0]["action"] == "lost"
    assert await other.report(again, result="good") == ["accepted"]
    read = await local_node.task(there)
    assert (read["state"], read["result"]) == ("completed", "good")
    executions = await local_node.executions(there)
    assert [(t["worker"], t["outcome"]) for t in executions] == [
        ("sleeper", "lost"),
        ("other", "succeeded"),
    ]
    assert executions[0]["error"]["code"] == "lost"
    assert "until its lease ended" in executions[0]["error"]["message"]


async def test_what_a_frozen_worker_loses_does_not_come_back_to_it(local_node: LocalNode) -> None:
    """Its poll is still open, and the first in the line."""
    there = await local_node.create()
    frozen, live = local_node.worker("frozen"), local_node.worker("live")
    assert await frozen.lease()
    forgotten = asyncio.create_task(frozen.lease(wait=20))
    await eventually(local_node.polled_by(1), within=5, what="the frozen one waits")
    (again,) = await live.lease(wait=10)
    assert (again["id"], again["fence"]) == (there, 2)
    async with asyncio.timeout(5):
        assert await forgotten == []
    assert await live.report(again) == ["accepted"]
    read = await local_node.task(there)
    assert read["lateness"]["failed_tries"] > 0.9, "the time that the frozen one had it"
    assert "unattributed" not in read["lateness"], read["lateness"]
    assert [t["worker"] for t in await local_node.executions(there)] == ["frozen", "live"]


async def test_heartbeats_keep_a_long_task(local_node: LocalNode) -> None:
    there = await local_node.create()
    worker = local_node.worker()
    (task,) = await worker.lease()
    ends = [task["lease_until"]]
    for step in range(6):
        await asyncio.sleep(0.3)
        (pulse,) = await worker.beat(task, progress={"step": step})
        assert pulse["action"] == "continue"
        ends.append(pulse["lease_until"])
    assert ends == sorted(ends)
    assert (await local_node.task(there))["progress"] == {"step": 5}
    assert await worker.report(task) == ["accepted"]
    assert len(await local_node.executions(there)) == 1


async def test_a_restarted_worker_frees_its_leases_and_revives_none(
    patient_node: LocalNode,
) -> None:
    """SCENARIOS 16, with a lease that would last for minutes."""
    there = await patient_node.create()
    old = patient_node.worker()
    (task,) = await old.lease()
    new = old.restarted()
    loop = asyncio.get_running_loop()
    began = loop.time()
    (again,) = await new.lease(wait=10)
    assert loop.time() - began < 2
    assert (again["id"], again["fence"]) == (there, 2)
    assert (await old.beat(task))[0]["action"] == "lost"
    assert await old.report(task) == ["fenced"]
    refused = await patient_node.client.post(
        "/v1/leases", {"worker": "w1", "incarnation": old.incarnation, "wait": 0}
    )
    assert refused.status == 409
    assert (await new.beat(again))[0]["action"] == "continue"
    assert (await patient_node.executions(there))[0]["error"]["message"] == "its worker began anew"
    assert await new.report(again) == ["accepted"]


async def test_what_kills_workers_is_leased_alone_and_then_given_up(
    patient_node: LocalNode,
) -> None:
    """SCENARIOS 17: the third loss, alone, is the last; its neighbours are unharmed. That it had
    begun before is known of it by a heartbeat."""
    poison = await patient_node.create(payload="poison", priority=9)
    neighbours = [await patient_node.create(payload="good") for _ in range(4)]
    worker = patient_node.worker()
    for _ in range(2):
        held: set[str] = set()
        while held < {poison, *neighbours}:
            tasks = await worker.lease(most=5)
            held |= {task["id"] for task in tasks}
            await worker.beat(*[task for task in tasks if task["id"] == poison])
        worker = worker.restarted()  # kill -9, and the process manager starts it again
    alone: list[list[str]] = []
    for _ in (poison, *neighbours):
        tasks = await worker.lease(most=5, wait=20)
        assert tasks, "each waits for its turn"
        assert all(t["context"]["alone"] for t in tasks)
        alone.append([t["id"] for t in tasks])
        if poison in alone[-1]:
            worker = worker.restarted()
        else:
            assert await worker.lease(most=5, wait=0.3) == []  # it holds one: that is all
            assert await worker.report(*tasks) == ["accepted"]
    assert await worker.lease(most=5, wait=0.3) == []
    assert sorted(alone) == sorted([id] for id in (poison, *neighbours))
    read = await patient_node.until(poison, "failed")
    assert read["error"]["code"] == "poison"
    letter = (await patient_node.client.get(f"/v1/dead-letters/{poison}")).json()
    assert [a["outcome"] for a in letter["attempts"]] == ["lost"] * 3
    assert [a["error"]["code"] for a in letter["attempts"]] == ["lost"] * 3
    for neighbour in neighbours:
        assert (await patient_node.task(neighbour))["state"] == "completed"


async def test_a_worker_is_not_blamed_for_tasks_it_did_not_start(patient_node: LocalNode) -> None:
    """SCENARIOS 50: however often it dies, and although it keeps the lease meanwhile."""
    there = await patient_node.create()
    worker = patient_node.worker()
    for number in range(4):
        (task,) = await worker.lease(announces_starts=True)
        assert (task["context"]["suspect"], task["context"]["alone"]) == (
            number > 0,
            number > 1,
        )
        (pulse,) = await worker.beat(task, started=False)
        assert pulse["action"] == "continue"
        worker = worker.restarted()
    (task,) = await worker.lease(announces_starts=True)
    executions = await patient_node.executions(there)
    assert [one["outcome"] for one in executions] == ["lost"] * 4
    assert all("not known to have begun" in one["error"]["message"] for one in executions)
    await worker.beat(task, alone=True)
    worker = worker.restarted()
    (task,) = await worker.lease(wait=20, announces_starts=True)
    await worker.beat(task, alone=True)
    worker = worker.restarted()
    assert await worker.lease(wait=0.3, announces_starts=True) == []
    assert (await patient_node.until(there, "failed"))["error"]["code"] == "poison"


async def test_of_many_leases_none_counts_as_started(patient_node: LocalNode) -> None:
    """A worker that never says what it begins: only what it held alone counts against a task."""
    both = {await patient_node.create() for _ in range(2)}
    worker, held = patient_node.worker(), set[str]()
    while held < both:
        held |= {task["id"] for task in await worker.lease(most=2, running=[])}
    worker = worker.restarted()
    await worker.lease(most=1, running=[])
    executions = [one for task_id in both for one in await patient_node.executions(task_id)]
    unproven = ["not known to have begun" in one["error"]["message"] for one in executions]
    assert len(unproven) == 2
    assert all(unproven), "also where they were leased one after the other"


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_one_lease_counts_as_started_unless_other_nodes_lease(
    patient_node: LocalNode, database: Database, elsewhere: bool
) -> None:
    """One node's only lease may have had a neighbour that another node gave."""
    there = await patient_node.create()
    worker = patient_node.worker()
    assert await worker.lease(running=[])
    if elsewhere:
        tenant, other = await patient_node.server.keys.ensure_tenant("workshop"), uuid4()
        await database.fetch("INSERT INTO nodes (id, name, version) VALUES ($1, 'two', '0')", other)
        await WorkerStore(database).note_held(other, {(tenant, "w1"): 0})
    await worker.restarted().lease(running=[])
    (lost,) = await patient_node.executions(there)
    assert ("not known to have begun" in lost["error"]["message"]) == elsewhere


async def test_a_report_shows_that_a_task_does_not_kill(patient_node: LocalNode) -> None:
    there = await patient_node.create(retry={"max_attempts": 5, "initial": 0.01})
    worker = patient_node.worker()
    for _ in range(2):
        assert await worker.lease()
        worker = worker.restarted()
    (task,) = await worker.lease()
    assert task["context"]["alone"]
    assert await worker.report(task, status="failed") == ["accepted"]
    (task,) = await worker.lease()
    assert (task["id"], task["context"]["alone"]) == (there, False)


async def test_the_hard_timeout_ends_what_heartbeats_for_ever(local_node: LocalNode) -> None:
    """SCENARIOS 18."""
    there = await local_node.create(timeout=0.5, retry={"max_attempts": 1})
    worker = local_node.worker()
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
    read = await local_node.task(there)
    assert (read["state"], read["error"]["code"]) == ("failed", "timeout")
    assert [t["outcome"] for t in await local_node.executions(there)] == ["timed_out"]
    assert await worker.report(task) == ["fenced"]


@pytest.mark.parametrize("status", ["failed", "released", "succeeded"])
async def test_a_cancel_arrives_with_the_next_heartbeat(local_node: LocalNode, status: str) -> None:
    """SCENARIOS 19."""
    there = await local_node.create(retry={"max_attempts": 1})
    worker = local_node.worker()
    (task,) = await worker.lease()
    assert (await local_node.client.post(f"/v1/tasks/{there}/cancel")).status == 200
    assert (await worker.beat(task))[0]["action"] == "cancel"
    assert await worker.report(task, status=status) == ["accepted"]
    state = (await local_node.task(there))["state"]
    assert state == ("completed" if status == "succeeded" else "cancelled")


async def test_a_cancelled_task_of_a_lost_worker_ends_as_cancelled(
    local_node: LocalNode,
) -> None:
    there = await local_node.create()
    assert await local_node.worker().lease()
    await local_node.client.post(f"/v1/tasks/{there}/cancel")
    assert (await local_node.until(there, "cancelled"))["attempts"] == 1


async def test_a_completion_at_the_end_of_the_lease_has_one_outcome(
    local_node: LocalNode,
) -> None:
    """SCENARIOS 15."""
    worker, other = local_node.worker("w1"), local_node.worker("w2")
    for moment in (0.9, 1.0, 1.05, 1.1):
        there = await local_node.create()
        (task,) = await worker.lease()
        await asyncio.sleep(moment)
        (verdict,) = await worker.report(task, result="first")
        if verdict == "accepted":
            assert (await local_node.task(there))["result"] == "first"
            continue
        assert verdict == "fenced"
        (again,) = await other.lease()
        assert await other.report(again, result="second") == ["accepted"]
        assert (await local_node.task(there))["result"] == "second"


async def test_a_node_says_when_it_waits_shorter_than_it_is_asked_to(
    database_url: str,
) -> None:
    body = {"worker": "w", "incarnation": "1", "handlers": ["work"], "max": 1}
    async with open_local_node(database_url, longest_poll=0.2) as local_node:
        cut = await local_node.client.post("/v1/leases", {**body, "wait": 20})
        assert cut.json() == {"tasks": [], "wait": 0.2}
        whole = await local_node.client.post("/v1/leases", {**body, "wait": 0.1})
        assert whole.json() == {"tasks": []}


async def test_a_worker_that_hangs_up_leaves_nothing_behind(local_node: LocalNode) -> None:
    """Its poll is forgotten, and what is claimed for it in that moment is released."""
    asked = asyncio.create_task(local_node.worker("gone").lease(wait=30))
    await eventually(local_node.polled_by(1), within=5, what="it waits")
    asked.cancel()
    await asyncio.wait([asked])
    there = await local_node.create()
    (task,) = await local_node.worker("here").lease(wait=3)
    assert task["id"] == there
