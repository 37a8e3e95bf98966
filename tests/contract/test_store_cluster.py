"""Who is alive and who owns what: the moves of nodes and partitions."""

from uuid import uuid4

from contract.store_lab import Lab
from mainspring.domain.placement import Tenure


async def test_a_member_beats(lab: Lab) -> None:
    tenure = await lab.join()
    assert await lab.cluster.beat(tenure.node_id, tenure.epoch) is not None
    assert await lab.cluster.beat(tenure.node_id, tenure.epoch + 1) is None
    assert await lab.cluster.beat(uuid4(), tenure.epoch) is None
    (member,) = await lab.cluster.members()
    assert member.id == tenure.node_id
    assert member.silent < 5


async def test_a_silent_node_is_declared_dead(lab: Lab) -> None:
    tenure = await lab.join()
    assert not await lab.cluster.declare_dead(tenure.node_id, 60.0)
    assert await lab.cluster.declare_dead(tenure.node_id, -1.0)
    assert await lab.inspect.node(tenure.node_id) == (tenure.epoch + 1, "dead")
    assert await lab.cluster.members() == []


async def test_a_node_dies_once(lab: Lab) -> None:
    tenure = await lab.join()
    assert await lab.cluster.declare_dead(tenure.node_id, -1.0)
    assert not await lab.cluster.declare_dead(tenure.node_id, -1.0)
    assert not await lab.cluster.declare_dead(uuid4(), -1.0)


async def test_only_the_one_named_dies(lab: Lab) -> None:
    dead, living = await lab.join(), await lab.join()
    assert await lab.cluster.declare_dead(dead.node_id, -1.0)
    assert [member.id for member in await lab.cluster.members()] == [living.node_id]


async def test_the_dead_do_not_beat(lab: Lab) -> None:
    tenure = await lab.join()
    await lab.cluster.hand_over(tenure, {}, leaving=True)
    assert await lab.cluster.beat(tenure.node_id, tenure.epoch + 1) is None


async def test_free_partitions_are_taken(lab: Lab) -> None:
    tenure = await lab.join()
    taken = await lab.cluster.take_over(tenure.node_id, tenure.epoch, [3, 5])
    assert sorted(taken) == [3, 5]
    assert await lab.inspect.owner(3) == (tenure.node_id, 1)
    assert await lab.inspect.owner(4) == (None, 0)
    ownership = await lab.cluster.ownership()
    assert ownership[tenure.node_id] == [3, 5]
    assert len(ownership[None]) == 254


async def test_partitions_of_the_living_are_not_taken(lab: Lab) -> None:
    owner, rival = await lab.join(), await lab.join()
    await lab.cluster.take_over(owner.node_id, owner.epoch, [3])
    assert await lab.cluster.take_over(rival.node_id, rival.epoch, [3]) == []
    assert await lab.inspect.owner(3) == (owner.node_id, 1)


async def test_partitions_of_the_dead_are_taken(lab: Lab) -> None:
    owner, heir = await lab.join(), await lab.join()
    await lab.cluster.take_over(owner.node_id, owner.epoch, [3])
    await lab.cluster.declare_dead(owner.node_id, -1.0)
    assert await lab.cluster.take_over(heir.node_id, heir.epoch, [3]) == [3]
    assert await lab.inspect.owner(3) == (heir.node_id, 2)


async def test_the_dead_take_nothing(lab: Lab) -> None:
    tenure = await lab.join()
    await lab.cluster.declare_dead(tenure.node_id, -1.0)
    for epoch in (tenure.epoch, tenure.epoch + 1):
        assert await lab.cluster.take_over(tenure.node_id, epoch, [3]) == []


async def test_an_old_epoch_takes_nothing(lab: Lab) -> None:
    tenure = await lab.join()
    await lab.cluster.hand_over(tenure, {})
    assert await lab.cluster.take_over(tenure.node_id, tenure.epoch, [3]) == []


async def test_partitions_are_handed_over(lab: Lab) -> None:
    giver, heir = await lab.join(), await lab.join()
    await lab.cluster.take_over(giver.node_id, giver.epoch, [3, 4, 5])
    gifts = {3: heir.node_id, 4: None}
    assert await lab.cluster.hand_over(giver, gifts) == giver.epoch + 1
    assert await lab.inspect.owner(3) == (heir.node_id, 2)
    assert await lab.inspect.owner(4) == (None, 2)
    assert await lab.inspect.owner(5) == (giver.node_id, 1)
    assert await lab.inspect.node(giver.node_id) == (giver.epoch + 1, "active")
    assert await lab.inspect.node(heir.node_id) == (heir.epoch, "active")


async def test_nobody_gives_what_is_not_theirs(lab: Lab) -> None:
    owner, thief = await lab.join(), await lab.join()
    await lab.cluster.take_over(owner.node_id, owner.epoch, [3])
    await lab.cluster.hand_over(thief, {3: thief.node_id})
    assert await lab.inspect.owner(3) == (owner.node_id, 1)


async def test_a_replaced_node_gives_nothing(lab: Lab) -> None:
    giver = await lab.join()
    await lab.cluster.take_over(giver.node_id, giver.epoch, [3])
    old = Tenure(giver.node_id, giver.epoch + 1, giver.partitions)
    assert await lab.cluster.hand_over(old, {3: None}) is None
    assert await lab.inspect.owner(3) == (giver.node_id, 1)


async def test_who_leaves_is_no_member(lab: Lab) -> None:
    tenure = await lab.join()
    await lab.cluster.hand_over(tenure, {}, leaving=True)
    assert await lab.inspect.node(tenure.node_id) == (tenure.epoch + 1, "left")
    assert await lab.cluster.members() == []
