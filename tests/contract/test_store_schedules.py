"""Deciding on schedules, as their owner asks for it: both stores say the same."""

import time
from dataclasses import replace
from math import floor

import pytest

from contract.store_set import EVERYWHERE, StoreSet
from mainspring.domain.partitions import Ownership
from mainspring.domain.schedules.definition import ScheduleDefinition
from mainspring.domain.schedules.policies import Misfire, OverlapPolicy
from mainspring.schedules.occurrences import DecidedSchedules

pytestmark = pytest.mark.slow


def every_minute(behind: int, **fields: object) -> ScheduleDefinition:
    """Due every minute, for the first time so many seconds ago, and undecided since."""
    first = float(floor(time.time()) - behind)
    made = ScheduleDefinition(interval=60.0, anchor=first, start_at=first, overlap="allow")
    return replace(made, **fields)  # type: ignore[arg-type]


async def decide(stores: StoreSet, ownership: Ownership, *, until: float = 4e9) -> DecidedSchedules:
    due = await stores.schedules.due(ownership.partitions, until=until, limit=100)
    return await stores.schedules.fire(ownership, due)


async def test_what_is_due_is_decided_once(stores: StoreSet) -> None:
    tenant, ownership = await stores.tenant(), await stores.join()
    definition = every_minute(10)
    schedule = await stores.inspect.add_schedule(tenant, definition)
    due = await stores.schedules.due(EVERYWHERE, until=time.time(), limit=100)
    assert [(d.tenant_id, d.id, d.wake) for d in due] == [(tenant, schedule, definition.anchor)]
    decisions = await stores.schedules.fire(ownership, due)
    [made] = decisions.made
    assert (made.task.schedule_id, made.task.nominal) == (schedule, definition.anchor)
    assert (await stores.row(tenant, made.task.id)).partition == made.partition
    again = await stores.schedules.fire(ownership, due)
    assert (again.made, again.decided) == ([], 0), "the same look, once more"
    assert await stores.inspect.ledger(schedule) == [
        (definition.anchor, definition.anchor, 1, "fired")
    ]
    assert await stores.schedules.due(EVERYWHERE, until=time.time(), limit=100) == []
    [later] = await stores.schedules.due(EVERYWHERE, until=4e9, limit=100)
    assert later.wake == definition.anchor + 60


async def test_a_node_of_another_server_decides_nothing(stores: StoreSet) -> None:
    tenant, ownership = await stores.tenant(), await stores.join()
    schedule = await stores.inspect.add_schedule(tenant, every_minute(10))
    await stores.inspect.restart_server()
    assert (await decide(stores, ownership)).decided == 0
    assert await stores.inspect.ledger(schedule) == []
    assert (await decide(stores, await stores.join())).decided == 1


@pytest.mark.parametrize("policy", ["skip", "latest", "all"])
async def test_an_outage_is_one_transaction(stores: StoreSet, policy: str) -> None:
    tenant, ownership = await stores.tenant(), await stores.join()
    misfire = Misfire(policy, 3600, 3)  # type: ignore[arg-type]
    definition = every_minute(590, misfire=misfire)
    schedule = await stores.inspect.add_schedule(tenant, definition)
    decisions = await decide(stores, ownership)
    first = definition.anchor
    lines = {
        "skip": [(first, first + 540, 10, "skipped_misfire")],
        "latest": [
            (first, first + 480, 9, "coalesced"),
            (first + 540, first + 540, 1, "fired"),
        ],
        "all": [
            (first, first + 360, 7, "skipped_misfire"),
            *((first + at, first + at, 1, "fired") for at in (420, 480, 540)),
        ],
    }
    assert await stores.inspect.ledger(schedule) == lines[policy]
    assert len(decisions.made) == {"skip": 0, "latest": 1, "all": 3}[policy]


async def test_only_the_owner_decides(stores: StoreSet) -> None:
    tenant, ownership = await stores.tenant(), await stores.join()
    schedule = await stores.inspect.add_schedule(tenant, every_minute(10))
    due = await stores.schedules.due(EVERYWHERE, until=time.time(), limit=100)
    nothing = replace(ownership, partitions=frozenset())
    assert (await stores.schedules.fire(nothing, due)).decided == 0
    assert await stores.schedules.due([], until=4e9, limit=100) == []
    assert (
        await stores.schedules.fire(replace(ownership, epoch=ownership.epoch + 1), due)
    ).decided == 0
    assert await stores.inspect.ledger(schedule) == []
    assert (await stores.schedules.fire(ownership, due)).decided == 1


async def test_nothing_is_decided_before_its_time(stores: StoreSet) -> None:
    tenant, ownership = await stores.tenant(), await stores.join()
    schedule = await stores.inspect.add_schedule(tenant, every_minute(-30))
    assert (await decide(stores, ownership)).decided == 0
    assert await stores.inspect.ledger(schedule) == []


async def test_the_last_time_ends_it(stores: StoreSet) -> None:
    tenant, ownership = await stores.tenant(), await stores.join()
    definition = every_minute(10)
    await stores.inspect.add_schedule(tenant, replace(definition, end_at=definition.anchor + 1))
    assert (await decide(stores, ownership)).decided == 1
    assert await stores.schedules.due(EVERYWHERE, until=4e9, limit=100) == []


@pytest.mark.parametrize(
    ("overlap", "decision", "state"),
    [
        ("allow", "fired", "scheduled"),
        ("skip", "skipped_overlap", "scheduled"),
        ("queue", "fired", "scheduled"),
        ("cancel_running", "fired", "cancelled"),
    ],
)
async def test_overlap_is_decided_by_what_is_unfinished(
    stores: StoreSet, overlap: OverlapPolicy, decision: str, state: str
) -> None:
    tenant, ownership = await stores.tenant(), await stores.join()
    first = floor(time.time()) - 1
    definition = ScheduleDefinition(
        interval=1.0, anchor=float(first), start_at=float(first), overlap=overlap
    )
    schedule = await stores.inspect.add_schedule(tenant, definition)
    made = (await decide(stores, ownership)).made[-1]
    while True:
        decisions = await decide(stores, ownership)
        if decisions.decided:
            break
    assert (await stores.inspect.ledger(schedule))[-1][3] == decision
    end = await stores.inspect.end_of(made.task.id)
    assert (end.state if end else "scheduled") == state
    if state == "cancelled":
        assert decisions.cancelled_in == {made.partition}
        assert (made.partition, made.task.id) in await stores.inspect.wakes()
