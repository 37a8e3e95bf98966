"""The registry of workers: the process behind each name, and what is known about it.

The database decides: the last process to come under a name is the worker, all before it are gone
for good. A node asks once per process; what it hears of them later it notes now and then.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mainspring.domain.capability import MOST_NAMES, MOST_OFFERS, Offer
from mainspring.domain.execution import Outcome
from mainspring.engine.demand import WorkerSession
from mainspring.errors import Conflict, StoreUnavailable
from mainspring.node.state import NodeState
from mainspring.store.workers import Touch, WorkerStore, offer_shown

_FORGET_AFTER = 120.0


@dataclass(slots=True)
class _WorkerEntry:
    """A worker that asked here."""

    holder: WorkerSession
    seen: float
    offers: dict[Offer, None] = field(default_factory=dict)
    """What its lanes ask with, each with its own; the last one asked last."""
    about: Mapping[str, object] | None = None
    offered: bool = False
    """Whether what it offers is not written yet."""
    heard: bool = True
    left: bool = False
    """Whether it has disconnected, and was not heard of since."""
    leased: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter)

    def ask(self, offer: Offer) -> None:
        """Note what one of its lanes offers."""
        if offer not in self.offers:
            self.offered = True
        self.offers.pop(offer, None)
        self.offers[offer] = None
        while len(self.offers) > 1 and (
            len(self.offers) > MOST_OFFERS or sum(map(_names, self.offers)) > MOST_NAMES
        ):
            del self.offers[next(iter(self.offers))]

    def touch(self) -> Touch:
        """Return what is new about it, once."""
        count = self.outcomes
        failed = count[Outcome.FAILED] + count[Outcome.TIMED_OUT]
        made = Touch(
            *self.holder, offer_shown(*self.offers) if self.offered else None, self.about,
            self.leased, count[Outcome.SUCCEEDED], failed, count[Outcome.RELEASED],
        )  # fmt: skip
        self.offered, self.heard, self.about, self.leased = False, False, None, 0
        self.outcomes = Counter()
        return made


@dataclass(eq=False)
class WorkerRegistry:
    """Knows the workers that ask at this node."""

    _state: NodeState
    _workers: WorkerStore
    _began: Callable[[WorkerSession], None]
    _there_for: float
    _known: dict[tuple[int, str], _WorkerEntry] = field(default_factory=dict, init=False)
    _held: dict[tuple[int, str], int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._state.on_new_incarnation(self._held.clear)

    async def admit(
        self, holder: WorkerSession, offer: Offer, about: Mapping[str, object] | None
    ) -> None:
        """Admit a worker that asks for tasks; Conflict when another process has taken its name."""
        known = self._entry_of(holder)
        if known is None:
            if not await self._workers.register(*holder, offer, about):
                raise superseded(holder)
            known = self._entry_of(holder)  # another of its lanes may have come meanwhile
        if known is None:
            known = self._known[holder[:2]] = _WorkerEntry(holder, self._state.clock.now())
            self._began(holder)
        known.ask(offer)
        self._hear(known, about)

    def heard(self, holder: WorkerSession, about: Mapping[str, object] | None) -> Sequence[Offer]:
        """Note that a worker is alive. Return what its lanes offer, if they asked here."""
        known = self._entry_of(holder)
        if known is None:
            return ()
        self._hear(known, about)
        return tuple(known.offers)

    def left(self, holder: WorkerSession) -> None:
        """Note that a worker has disconnected."""
        if (known := self._entry_of(holder)) is not None:
            known.left = True

    def leased(self, holder: WorkerSession) -> None:
        if (known := self._entry_of(holder)) is not None:
            known.leased += 1
            known.heard = True

    def reported(self, holder: WorkerSession, outcome: Outcome) -> None:
        if (known := self._entry_of(holder)) is not None:
            known.outcomes[outcome] += 1
            known.heard = True

    def replaced(self, current: WorkerSession) -> None:
        """Forget a worker whose name another process has taken, at another node."""
        known = self._known.get(current[:2])
        if known is not None and known.holder != current:
            del self._known[current[:2]]

    def knows(self, holder: WorkerSession) -> bool:
        return self._entry_of(holder) is not None

    def kinds(self) -> Iterable[tuple[int, Offer]]:
        """The kinds of workers that were heard of lately."""
        since = self._state.clock.now() - self._there_for
        there = [k for k in self._known.values() if k.seen > since and not k.left]
        return [(known.holder.tenant_id, offer) for known in there for offer in known.offers]

    async def is_current(self, holder: WorkerSession) -> bool:
        return await self._workers.is_current(*holder)

    async def write(self) -> None:
        """Write what was heard since the last time, and what is held in our partitions."""
        now = self._state.clock.now()
        heard = [known for known in self._known.values() if known.heard]
        if heard:
            try:
                current = await self._workers.touch([known.touch() for known in heard])
            except StoreUnavailable:
                for known in heard:  # what a worker offers is told once: tell it again
                    known.offered = known.heard = True
                raise
            for known in heard:
                if known.holder[:2] not in current:
                    self.forget(known.holder)
        since = now - max(_FORGET_AFTER, self._there_for)
        for known in [k for k in self._known.values() if k.seen < since]:
            self.forget(known.holder)
        held = self._state.engine.running.by_worker()
        changed = {
            name: held.get(name, 0)
            for name in held.keys() | self._held.keys()
            if held.get(name, 0) != self._held.get(name, 0)
        }
        if changed:
            await self._workers.note_held(self._state.node_id, dict(sorted(changed.items())))
            self._held.clear()
            self._held.update(held)

    def forget(self, holder: WorkerSession) -> None:
        if self._entry_of(holder) is not None:
            del self._known[holder[:2]]

    def _entry_of(self, holder: WorkerSession) -> _WorkerEntry | None:
        known = self._known.get(holder[:2])
        return known if known is not None and known.holder == holder else None

    def _hear(self, known: _WorkerEntry, about: Mapping[str, object] | None) -> None:
        known.heard, known.left, known.seen = True, False, self._state.clock.now()
        if about:
            known.about = {**(known.about or {}), **about}


def _names(offer: Offer) -> int:
    return len(offer.queues) + len(offer.handlers) + len(offer.tags)


def superseded(holder: WorkerSession) -> Conflict:
    return Conflict(
        f"another process has taken the name {holder.worker!r}: this one's leases are gone; "
        "come back under a name, or with an incarnation, of your own"
    )
