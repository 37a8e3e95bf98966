"""The room that is left on a node: nobody takes the last slots alone.

Fairness decides who goes next when a slot is free; it cannot help when none is, because a tenant of
receivers that never answer took them all while nobody else was there. So a tenant may hold slots
only as long as they are at most a few times those still free: one alone gets four fifths of the
node, two get four ninths each, and whoever comes next finds room at once.
"""

from collections import Counter
from collections.abc import Mapping

MAX_SHARE_RATIO = 4


class SlotQuota:
    """A count of free slots for one round of picking, and who holds the others. `slotless` is how
    many may be picked that take none; None: as many as there are."""

    def __init__(self, free: int, *held: Mapping[int, int], slotless: int | None = None) -> None:
        self._free = free
        self._held = held
        self._slotless = slotless
        self._taken: Counter[int] = Counter()

    def admits(self, tenant_id: int, weight: int) -> bool:
        """Whether this tenant may take one more."""
        holds = self._taken[tenant_id] + sum(held.get(tenant_id, 0) for held in self._held)
        return holds < MAX_SHARE_RATIO * weight * self._free

    @property
    def admits_slotless(self) -> bool:
        """Whether one more may be picked that takes no slot."""
        return self._slotless is None or self._slotless > 0

    def take(self, tenant_id: int) -> None:
        self._taken[tenant_id] += 1
        self._free -= 1

    def take_slotless(self) -> None:
        if self._slotless is not None:
            self._slotless -= 1
