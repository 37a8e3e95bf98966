"""The bounds of an engine."""

from typing import NamedTuple

from mainspring.domain.capability import THERE_FOR


class EngineSettings(NamedTuple):
    """The engine's bounds. Durations in seconds."""

    lease: float = 15.0
    aging_step: float = 60.0
    stream_cap: int = 256
    tenant_cap: int = 1024
    there_for: float = THERE_FOR
    """How long workers are believed to be there that are not heard of."""
