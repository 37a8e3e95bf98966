"""The choices a schedule makes and the decisions about its occurrences: plain, light values."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

MisfirePolicy = Literal["skip", "latest", "all"]
OverlapPolicy = Literal["allow", "skip", "queue", "cancel_running"]
GapPolicy = Literal["shift", "skip"]
RepeatPolicy = Literal["first", "second", "both"]


@dataclass(frozen=True, slots=True)
class Misfire:
    """What to do about occurrences whose time passed while nobody could decide on them."""

    policy: MisfirePolicy = "latest"
    window: float = 3600.0
    cap: int = 100


class Decision(StrEnum):
    """What became of an occurrence."""

    FIRED = "fired"
    SKIPPED_OVERLAP = "skipped_overlap"
    SKIPPED_MISFIRE = "skipped_misfire"
    SKIPPED_EXCLUDED = "skipped_excluded"
    SKIPPED_PAUSED = "skipped_paused"
    COALESCED = "coalesced"
    BACKFILLED = "backfilled"
