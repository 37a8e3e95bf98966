"""Who is alive and who owns what: the moves of nodes and partitions."""

from dataclasses import replace
from uuid import uuid4

import asyncpg
import pytest

from contract.store_set import StoreSet
from mainspring.domain.partitions import Ownership
from mainspring.postgres.rows import read_row
from mainspring.store import cluster


async def test_a_member_beats(stores: StoreSet) -> None:
    ownership = await stores.join()
    assert await stores.cluster.beat(ownership.node_id, ownership.epoch) is not None
    assert await stores.cluster.beat(ownership.node_id, ownership.epoch + 1) is None
    assert await stores.cluster.beat(uuid4(), ownership.epoch) is None
    (member,) = await stores.cluster.members()
    assert member.id == ownership.node_id
    assert member.silent < 5


async def test_a_silent_node_is_declared_dead(stores: StoreSet) -> None:
    ownership = await stores.join()
    assert not await stores.cluster.declare_dead(ownership.node_id, 60.0)
    assert await stores.cluster.declare_dead(ownership.node_id, -1.0)
    assert await stores.inspect.node(ownership.node_id) == (ownership.epoch + 1, "dead")
    assert await stores.cluster.members() == []


async def test_a_node_is_declared_dead_once(stores: StoreSet) -> None:
    ownership = await stores.join()
    assert await stores.cluster.declare_dead(ownership.node_id, -1.0)
    assert not await stores.cluster.declare_dead(ownership.node_id, -1.0)
    assert not await stores.cluster.declare_dead(uuid4(), -1.0)


async def test_only_the_named_node_is_declared_dead(stores: StoreSet) -> None:
    dead, living = await stores.join(), await stores.join()
    assert await stores.cluster.declare_dead(dead.node_id, -1.0)
    assert [member.id for member in await stores.cluster.members()] == [living.node_id]


async def test_a_heartbeat_of_a_dead_node_is_refused(stores: StoreSet) -> None:
    ownership = await stores.join()
    await stores.cluster.hand_over(ownership, {}, leaving=True)
    assert await stores.cluster.beat(ownership.node_id, ownership.epoch + 1) is None


async def test_free_partitions_are_taken(stores: StoreSet) -> None:
    ownership = await stores.join()
    taken = await stores.cluster.take_over(ownership.node_id, ownership.epoch, [3, 5])
    assert sorted(taken) == [3, 5]
    assert await stores.inspect.owner(3) == (ownership.node_id, 1)
    assert await stores.inspect.owner(4) == (None, 0)
    owned = await stores.cluster.ownership()
    assert owned[ownership.node_id] == [3, 5]
    assert len(owned[None]) == 254


async def test_partitions_of_live_nodes_are_not_taken(stores: StoreSet) -> None:
    owner, rival = await stores.join(), await stores.join()
    await stores.cluster.take_over(owner.node_id, owner.epoch, [3])
    assert await stores.cluster.take_over(rival.node_id, rival.epoch, [3]) == []
    assert await stores.inspect.owner(3) == (owner.node_id, 1)


async def test_partitions_of_dead_nodes_are_taken(stores: StoreSet) -> None:
    owner, heir = await stores.join(), await stores.join()
    await stores.cluster.take_over(owner.node_id, owner.epoch, [3])
    await stores.cluster.declare_dead(owner.node_id, -1.0)
    assert await stores.cluster.take_over(heir.node_id, heir.epoch, [3]) == [3]
    assert await stores.inspect.owner(3) == (heir.node_id, 2)


async def test_a_dead_node_takes_no_partition(stores: StoreSet) -> None:
    ownership = await stores.join()
    await stores.cluster.declare_dead(ownership.node_id, -1.0)
    for epoch in (ownership.epoch, ownership.epoch + 1):
        assert await stores.cluster.take_over(ownership.node_id, epoch, [3]) == []


async def test_an_old_epoch_takes_nothing(stores: StoreSet) -> None:
    ownership = await stores.join()
    await stores.cluster.hand_over(ownership, {})
    assert await stores.cluster.take_over(ownership.node_id, ownership.epoch, [3]) == []


async def test_partitions_are_handed_over(stores: StoreSet) -> None:
    giver, heir = await stores.join(), await stores.join()
    await stores.cluster.take_over(giver.node_id, giver.epoch, [3, 4, 5])
    gifts = {3: heir.node_id, 4: None}
    assert await stores.cluster.hand_over(giver, gifts) == giver.epoch + 1
    assert await stores.inspect.owner(3) == (heir.node_id, 2)
    assert await stores.inspect.owner(4) == (None, 2)
    assert await stores.inspect.owner(5) == (giver.node_id, 1)
    assert await stores.inspect.node(giver.node_id) == (giver.epoch + 1, "active")
    assert await stores.inspect.node(heir.node_id) == (heir.epoch, "active")


async def test_nobody_gives_what_is_not_theirs(stores: StoreSet) -> None:
    owner, thief = await stores.join(), await stores.join()
    await stores.cluster.take_over(owner.node_id, owner.epoch, [3])
    await stores.cluster.hand_over(thief, {3: thief.node_id})
    assert await stores.inspect.owner(3) == (owner.node_id, 1)


async def test_a_replaced_node_gives_nothing(stores: StoreSet) -> None:
    giver = await stores.join()
    await stores.cluster.take_over(giver.node_id, giver.epoch, [3])
    old = Ownership(giver.node_id, giver.epoch + 1, giver.partitions)
    assert await stores.cluster.hand_over(old, {3: None}) is None
    assert await stores.inspect.owner(3) == (giver.node_id, 1)


async def test_a_node_that_leaves_is_no_member(stores: StoreSet) -> None:
    ownership = await stores.join()
    await stores.cluster.hand_over(ownership, {}, leaving=True)
    assert await stores.inspect.node(ownership.node_id) == (ownership.epoch + 1, "left")
    assert await stores.cluster.members() == []


async def test_beats_are_counted_and_do_not_go_back(stores: StoreSet) -> None:
    ownership = await stores.join()
    first = await stores.cluster.beat(ownership.node_id, ownership.epoch)
    assert first is not None
    second = await stores.cluster.beat(ownership.node_id, ownership.epoch, first.beats)
    assert second is not None
    assert second.beats == first.beats + 1
    # As after a restore of a database that knew of fewer.
    assert await stores.cluster.beat(ownership.node_id, ownership.epoch, second.beats + 1) is None
    assert await stores.cluster.beat(ownership.node_id, ownership.epoch, second.beats) is not None


async def test_a_node_of_another_server_is_no_member(stores: StoreSet) -> None:
    ownership = await stores.join()
    taken = await stores.cluster.take_over(ownership.node_id, ownership.epoch, [3])
    await stores.inspect.restart_server()
    assert taken == [3]
    assert await stores.cluster.beat(ownership.node_id, ownership.epoch) is None
    assert await stores.cluster.take_over(ownership.node_id, ownership.epoch, [4]) == []
    heir = await stores.join()
    assert await stores.inspect.node(ownership.node_id) == (ownership.epoch + 1, "dead")
    assert await stores.cluster.take_over(heir.node_id, heir.epoch, [3]) == [3]


async def test_a_node_of_a_database_set_back_takes_nothing(stores: StoreSet) -> None:
    """It knows of more heartbeats than the database."""
    node = await stores.join()
    assert await stores.cluster.take_over(node.node_id, node.epoch, [3], beats=1) == []
    known = replace(node, beats=1)
    assert await stores.cluster.hand_over(known, {}) is None
    assert await stores.cluster.take_over(node.node_id, node.epoch, [3]) == [3]


async def test_partition_epochs_rise_with_another_server(stores: StoreSet) -> None:
    ownership = await stores.join()
    await stores.cluster.take_over(ownership.node_id, ownership.epoch, [3])
    await stores.join()
    assert await stores.inspect.owner(3) == (ownership.node_id, 1)
    await stores.inspect.restart_server()
    await stores.join()
    owner, epoch = await stores.inspect.owner(3)
    assert owner == ownership.node_id
    assert epoch > 50_000_000  # the seconds since 2025, which no restore repeats


async def test_a_node_that_rejoins_leaves_no_former_row(stores: StoreSet) -> None:
    former, other = await stores.join(), await stores.join()
    for _ in range(2):
        await stores.cluster.join(uuid4(), "test", None, "0", former=former.node_id)
        assert await stores.inspect.node(former.node_id) == (former.epoch + 1, "dead")
        assert await stores.inspect.node(other.node_id) == (other.epoch, "active")


@pytest.mark.server
async def test_an_operator_lets_nothing_be_repeated(
    real_stores: StoreSet, connection: asyncpg.Connection
) -> None:
    dead, left, living = [await real_stores.join() for _ in range(3)]
    await real_stores.cluster.declare_dead(dead.node_id, -1.0)
    await real_stores.cluster.hand_over(left, {}, leaving=True)
    await real_stores.cluster.take_over(living.node_id, living.epoch, [3])
    [found] = await connection.fetch(*cluster.SQL["restore_fence"]())
    done = read_row(cluster.Fenced, found)
    assert done.nodes == 1
    assert await real_stores.inspect.owner(3) == (living.node_id, done.epoch)
    assert await real_stores.inspect.owner(4) == (None, done.epoch)
    assert done.epoch == done.floor > 50_000_000
    assert await real_stores.inspect.node(dead.node_id) == (dead.epoch + 1, "dead")
    assert await real_stores.inspect.node(left.node_id) == (left.epoch + 1, "left")
    assert await real_stores.inspect.node(living.node_id) == (living.epoch + 1, "dead")
    [found] = await connection.fetch(*cluster.SQL["restore_fence"]())
    again = read_row(cluster.Fenced, found)
    assert (again.nodes, again.epoch > done.epoch) == (0, True)


@pytest.mark.server
async def test_restore_fence_keeps_to_the_clock_on_the_same_server(
    real_stores: StoreSet, connection: asyncpg.Connection
) -> None:
    """Else who joins after a second restore, soon after the first, begins with the same fence."""
    await real_stores.join()
    await connection.fetch(*cluster.SQL["restore_fence"]())
    assert await connection.fetchval("SELECT floor <= fence_of_now() + 1 FROM fence_floor")
    await connection.execute("UPDATE fence_floor SET server_started = '2000-01-01'")
    await connection.fetch(*cluster.SQL["restore_fence"]())
    assert await connection.fetchval("SELECT floor > fence_of_now() + 50 FROM fence_floor")


@pytest.mark.server
async def test_a_floor_ahead_of_the_clock_is_not_given_twice(
    real_stores: StoreSet, connection: asyncpg.Connection
) -> None:
    """A dump from the minute after a failover is loaded into the same server."""
    restored = "UPDATE fence_floor SET floor = floor - 5 RETURNING floor"  # five seconds later
    await real_stores.join()
    await real_stores.inspect.restart_server()
    await real_stores.join()
    issued = await connection.fetchval(restored)
    await real_stores.join()
    assert await connection.fetchval("SELECT floor FROM fence_floor") > issued
    issued = await connection.fetchval(restored)
    await connection.fetch(*cluster.SQL["restore_fence"]())
    assert await connection.fetchval("SELECT floor FROM fence_floor") > issued + 1
