"""The fair queue: shares between tenants, deadlines inside one, keys and limits exact."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.rows import StreamKey
from mainspring.domain.tenant import TenantLimits
from mainspring.engine.entry import Entry, Phase
from mainspring.engine.fair import FairQueue
from support.rows import row


def anything(_capability: str) -> bool:
    return True


def entry(
    number: int,
    *,
    tenant: int = 1,
    deadline: float = 0.0,
    key: str | None = None,
    limit: int = 1,
    queue: str = "default",
    capability: str = "handler:work",
    partition: int = 0,
) -> Entry:
    found = row(
        number, tenant=tenant, key=key, limit=limit if key else None, queue=queue,
        capability=capability, partition=partition,
    )  # fmt: skip
    return Entry(found, StreamKey(partition, tenant), deadline)


def make_queue(**weights: int) -> FairQueue:
    queue = FairQueue()
    for tenant, weight in (weights or {"t1": 1}).items():
        queue.set_limits(int(tenant[1:]), TenantLimits(weight), 0.0)
    return queue


def numbers(picked: list[Entry]) -> list[int]:
    return [found.row.id.int for found in picked]


def end(queue: FairQueue, found: Entry, now: float = 0.0) -> None:
    queue.ended(found, now)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30))
def test_inside_a_tenant_the_earliest_deadline_goes_first(deadlines: list[int]) -> None:
    queue = make_queue()
    for number, deadline in enumerate(deadlines):
        queue.push(entry(number, deadline=deadline), 0.0)
    picked = queue.pick(0.0, len(deadlines), anything)
    assert [found.deadline for found in picked] == sorted(deadlines)


@given(st.integers(1, 5), st.integers(1, 5))
def test_slots_are_shared_by_weight(one: int, other: int) -> None:
    queue = make_queue(t1=one, t2=other)
    for number in range(100):
        queue.push(entry(number, tenant=1 + number % 2), 0.0)
    slots = 4 * (one + other)
    shares = Counter(e.row.tenant_id for e in queue.pick(0.0, slots, anything))
    assert shares == {1: 4 * one, 2: 4 * other}


def test_a_tenant_that_holds_slots_waits_for_the_others() -> None:
    queue = make_queue(t1=1, t2=1)
    for number in range(10):
        queue.push(entry(number, tenant=1), 0.0)
    assert len(queue.pick(0.0, 6, anything)) == 6
    for number in range(10, 20):
        queue.push(entry(number, tenant=2), 0.0)
    assert {e.row.tenant_id for e in queue.pick(0.0, 6, anything)} == {2}


def test_a_waiting_task_overtakes_ever_newer_urgent_ones() -> None:
    queue, aging_step = make_queue(), 10.0
    queue.push(entry(0, deadline=0.0), 0.0)
    for now in range(1, 200):
        queue.push(entry(now, deadline=now - 9 * aging_step), float(now))
        if numbers(queue.pick(float(now), 1, anything)) == [0]:
            assert now <= 9 * aging_step + 1
            return
    raise AssertionError("the old task starved")


def test_what_nobody_can_run_holds_up_no_other() -> None:
    queue = make_queue()
    queue.push(entry(1, capability="handler:mainspring.workflow", deadline=-9.0), 0.0)
    queue.push(entry(2, capability="http"), 0.0)
    assert numbers(queue.pick(0.0, 5, lambda capability: capability == "http")) == [2]
    assert numbers(queue.pick(0.0, 5, anything)) == [1]


def test_it_does_not_matter_how_many_names_a_tenant_uses() -> None:
    queue, looks = make_queue(), 0

    def accepts(_capability: str) -> bool:
        nonlocal looks
        looks += 1
        return True

    for n in range(500):
        queue.push(entry(n, queue=f"q{n}", capability="http", deadline=n), 0.0)
        name = f"handler:mainspring.no-{n}"
        queue.push(entry(500 + n, key="k", limit=9, capability=name, deadline=500 + n), 0.0)
    assert numbers(queue.pick(0.0, 100, accepts)) == list(range(100))
    assert looks <= 2 * 100


def test_a_gated_tenant_is_not_looked_at_again_and_again() -> None:
    queue = FairQueue()
    for tenant in range(100):
        queue.set_limits(tenant, TenantLimits(max_running=1, spread=1), 0.0)
        for n in range(2):
            queue.push(entry(10 * tenant + n, tenant=tenant), 0.0)
    first = queue.pick(0.0, 1000, anything)
    assert len(first) == 100
    assert queue.pick(0.0, 1000, anything) == []
    end(queue, first[7])
    again = queue.pick(0.0, 1000, anything)
    assert [found.row.tenant_id for found in again] == [first[7].row.tenant_id]


def test_a_forgotten_task_is_not_picked() -> None:
    queue, found = make_queue(), entry(1)
    queue.push(found, 0.0)
    queue.forget(found, 0.0)
    assert found.phase is Phase.FORGOTTEN
    assert queue.pick(0.0, 5, anything) == []


def test_a_forgotten_task_lets_the_next_of_its_key_compete() -> None:
    queue, first, second = make_queue(), entry(1, key="red"), entry(2, key="red", deadline=1.0)
    queue.push(first, 0.0)
    queue.push(second, 0.0)
    queue.forget(first, 0.0)
    assert numbers(queue.pick(0.0, 5, anything)) == [2]


def test_a_key_lets_as_many_run_as_its_limit() -> None:
    queue = make_queue()
    entries = [entry(n, key="red", limit=2, deadline=n) for n in range(5)]
    for found in entries:
        queue.push(found, 0.0)
    assert numbers(queue.pick(0.0, 5, anything)) == [0, 1]
    assert queue.pick(0.0, 5, anything) == []
    end(queue, entries[0])
    assert numbers(queue.pick(0.0, 5, anything)) == [2]


def test_a_key_counts_across_queues() -> None:
    queue = make_queue()
    for number, name in enumerate(("default", "mail", "default")):
        queue.push(entry(number, key="red", queue=name), 0.0)
    assert len(queue.pick(0.0, 5, anything)) == 1


def test_a_blocked_key_holds_up_nobody_else() -> None:
    queue = make_queue()
    for number in range(3):
        queue.push(entry(number, key="red", deadline=-9.0), 0.0)
    queue.push(entry(9), 0.0)
    assert sorted(numbers(queue.pick(0.0, 5, anything))) == [0, 9]


def test_what_was_found_running_counts_for_its_key() -> None:
    queue = make_queue()
    found = entry(2, key="red")
    queue.started(found)
    queue.push(entry(1, key="red"), 0.0)
    assert queue.pick(0.0, 5, anything) == []
    end(queue, found)
    assert numbers(queue.pick(0.0, 5, anything)) == [1]


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.sampled_from("rb"), st.integers(1, 3), st.booleans()),
        st.tuples(st.just("pick"), st.integers(1, 4)),
        st.tuples(st.just("end"), st.integers(0, 99)),
        st.tuples(st.just("forget"), st.integers(0, 99)),
    ),
    max_size=60,
)


@given(_steps)
def test_keys_are_exact_and_nothing_is_forgotten(steps: list[tuple[object, ...]]) -> None:
    """Whatever happens in whatever order: never more than a task's limit, and in the end all."""
    queue = make_queue()
    waiting: list[Entry] = []
    running: list[Entry] = []

    def take(picked: list[Entry]) -> None:
        for found in picked:
            same = sum(r.row.concurrency_key == found.row.concurrency_key for r in running)
            assert found.row.concurrency_limit is not None
            assert same < found.row.concurrency_limit
            waiting.remove(found)
            running.append(found)

    for number, step in enumerate(steps):
        match step:
            case ("push", str(key), int(limit), bool(mail)):
                found = entry(number, key=key, limit=limit, queue="mail" if mail else "default")
                waiting.append(found)
                queue.push(found, 0.0)
            case ("pick", int(slots)):
                take(queue.pick(0.0, slots, anything))
            case ("end", int(which)) if running:
                end(queue, running.pop(which % len(running)))
            case ("forget", int(which)) if waiting:
                queue.forget(waiting.pop(which % len(waiting)), 0.0)
    while waiting or running:
        take(queue.pick(0.0, 100, anything))
        assert running, "somebody waits though nobody runs"
        end(queue, running.pop())


def test_limits_change_at_run_time() -> None:
    queue = make_queue()
    entries = [entry(n, deadline=n) for n in range(6)]
    for found in entries:
        queue.push(found, 0.0)
    assert len(queue.pick(0.0, 2, anything)) == 2
    assert queue.set_limits(1, TenantLimits(max_running=3, spread=1), 0.0)
    queue.recount(1, [0, 0])
    for found in entries[2:]:
        queue.push(found, 0.0)
    assert numbers(queue.pick(0.0, 6, anything)) == [2]
    assert not queue.set_limits(1, TenantLimits(max_running=3, spread=1), 0.0)
    end(queue, entries[0])
    assert numbers(queue.pick(0.0, 6, anything)) == [3]


def test_a_limit_is_shared_by_the_partitions() -> None:
    queue = FairQueue()
    queue.set_limits(1, TenantLimits(max_running=4, spread=2), 0.0)
    for number in range(10):
        queue.push(entry(number, partition=number % 2), 0.0)
    picked = queue.pick(0.0, 10, anything)
    assert Counter(e.row.partition for e in picked) == {0: 2, 1: 2}
