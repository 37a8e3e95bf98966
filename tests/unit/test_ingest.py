"""Creates whose answer never came."""

from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

import pytest

from contract.store_set import SPEC
from mainspring.api.tasks import ingest as ingesting
from mainspring.api.tasks.ingest import Ingest
from mainspring.domain.partitions import Ownership
from mainspring.errors import NothingSent, StoreUnavailable
from mainspring.observe.metrics import Metrics
from mainspring.store.creation import NO_EAGER_LEASE, Creation, EagerLeaseOffer, Made, NewTask
from mainspring.store.tasks import TaskStore
from support.in_process_api import IdleNode
from support.manual_clock import ManualClock

NOW = 1000.0


class UnreachableStore(TaskStore):
    """A store that cannot be reached, and how often it was asked what exists."""

    def __init__(self, problem: StoreUnavailable) -> None:
        self._problem = problem
        self.looked = 0

    async def create(
        self,
        creations: Sequence[Creation],
        ownership: Ownership,
        start: EagerLeaseOffer = NO_EAGER_LEASE,
    ) -> Made:
        raise self._problem

    async def which_exist(self, tenant_id: int, ids: Sequence[UUID]) -> dict[UUID, int | None]:
        self.looked += 1
        raise self._problem


class RecordingNode(IdleNode):
    """What the node is told."""

    def __init__(self) -> None:
        self.stale_marks = 0
        self.eager_leases: list[object] = []

    def mark_stale(self) -> None:
        self.stale_marks += 1

    def end_eager_lease(self, offer: EagerLeaseOffer, leased: object) -> None:
        self.eager_leases.append(leased)


def creation() -> Creation:
    task = NewTask(
        1, UUID(int=1), NOW, NOW, NOW, None, None, None, 5, "q", "http", None, None, SPEC, b"{}"
    )
    return Creation(1, [task])


@pytest.mark.parametrize(
    ("problem", "looked", "stale_marks", "begun"),
    [(StoreUnavailable("lost"), True, 1, None), (NothingSent("no connection"), False, 0, ())],
)
async def test_an_unanswered_batch_is_looked_up_then_marked_stale(
    monkeypatch: pytest.MonkeyPatch,
    problem: StoreUnavailable,
    looked: bool,
    stale_marks: int,
    begun: object,
) -> None:
    """A repetition under the same key is told that the task is there: our engine has to find it.
    Of what was never sent there is nothing to find."""
    monkeypatch.setattr(ingesting, "_REREAD_FOR", 0.01)
    monkeypatch.setattr(ingesting, "_REREAD_EVERY", 0.001)
    store, node = UnreachableStore(problem), RecordingNode()
    ingest = Ingest(store, cast(Any, node), ManualClock(NOW), Metrics(), 30.0)
    with pytest.raises(type(problem)):
        await ingest.create(creation())
    assert (store.looked > 0, node.stale_marks, node.eager_leases) == (looked, stale_marks, [begun])
