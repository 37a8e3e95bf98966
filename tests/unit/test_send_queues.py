"""Whose turn it is: queues inside the http executor, and the room on a node."""

from collections import Counter
from random import Random

import pytest

from mainspring.engine.shares import SlotQuota
from mainspring.execution.egress_guard import CallOrigin
from mainspring.execution.send_queues import Caps, SendQueues

A, B = CallOrigin("a", 80), CallOrigin("b", 80)
Item = tuple[int, CallOrigin, int]


def push(queues: SendQueues[Item], tenant: int, origin: CallOrigin, count: int) -> None:
    for number in range(count):
        queues.push(tenant, origin, (tenant, origin, number))


def test_a_full_host_leaves_room_for_others() -> None:
    queues: SendQueues[Item] = SendQueues(Caps(total=100, tenant=10, host=3))
    push(queues, 1, A, 50)
    assert len(queues.take()) == 3
    push(queues, 1, B, 2)
    push(queues, 2, A, 5)
    assert Counter(item[:2] for item in queues.take()) == {(1, B): 2, (2, A): 3}
    queues.ended(1, A)
    assert [item[:2] for item in queues.take()] == [(1, A)]


def test_a_tenant_has_a_cap_over_its_hosts() -> None:
    queues: SendQueues[Item] = SendQueues(Caps(total=100, tenant=4, host=3))
    push(queues, 1, A, 50)
    push(queues, 1, B, 50)
    assert Counter(item[1] for item in queues.take()) == {A: 2, B: 2}


def test_tenants_take_turns_for_the_last_places() -> None:
    queues: SendQueues[Item] = SendQueues(Caps(total=4, tenant=100, host=100))
    push(queues, 1, A, 50)
    push(queues, 2, A, 50)
    assert Counter(item[0] for item in queues.take()) == {1: 2, 2: 2}


def test_what_is_removed_is_never_taken() -> None:
    queues: SendQueues[Item] = SendQueues(Caps(total=10, tenant=10, host=1))
    push(queues, 1, A, 2)
    assert queues.take() == [(1, A, 0)]
    assert queues.remove(1, A, (1, A, 1))
    assert not queues.remove(1, A, (1, A, 1))
    queues.ended(1, A)
    assert queues.take() == []


@pytest.mark.parametrize("seed", range(20))
def test_caps_hold_and_nothing_is_lost_whatever_happens(seed: int) -> None:
    rng, caps = Random(seed), Caps(total=9, tenant=5, host=3)
    queues: SendQueues[Item] = SendQueues(caps)
    flying: list[Item] = []
    pushed = taken = removed = 0
    waiting: set[Item] = set()
    for step in range(2000):
        item = (rng.randrange(4), rng.choice([A, B]), step)
        action = rng.random()
        if action < 0.4:
            queues.push(item[0], item[1], item)
            waiting.add(item)
            pushed += 1
        elif action < 0.5 and waiting:
            gone = rng.choice(sorted(waiting))
            assert queues.remove(gone[0], gone[1], gone)
            waiting.discard(gone)
            removed += 1
        elif flying:
            over = flying.pop(rng.randrange(len(flying)))
            queues.ended(over[0], over[1])
        for started in queues.take():
            waiting.discard(started)
            flying.append(started)
            taken += 1
        assert len(flying) <= caps.total
        assert max(Counter(i[0] for i in flying).values(), default=0) <= caps.tenant
        assert max(Counter(i[:2] for i in flying).values(), default=0) <= caps.host
    while flying:
        over = flying.pop()
        queues.ended(over[0], over[1])
        more = queues.take()
        flying += more
        taken += len(more)
    assert pushed == taken + removed


def test_nobody_takes_the_last_slots_alone() -> None:
    held: Counter[int] = Counter()
    room = SlotQuota(1000, held)
    while room.admits(1, 1):
        room.take(1)
        held[1] += 1
        room = SlotQuota(1000 - held.total(), held)
    assert held[1] == 800
    while room.admits(2, 1):
        held[2] += 1
        room = SlotQuota(1000 - held.total(), held)
    assert held[2] == 160
    assert SlotQuota(1000 - held.total(), held).admits(3, 1)


def test_a_heavier_tenant_may_hold_more() -> None:
    assert not SlotQuota(10, {1: 40}).admits(1, 1)
    assert SlotQuota(10, {1: 40}).admits(1, 2)
