"""A tenant: a team that owns everything below it, and the keys by which callers are known."""

from dataclasses import dataclass

from mainspring.domain.partitions import PARTITIONS


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """What a tenant may use. Limits are exact because `spread` partitions share them evenly."""

    weight: int = 1
    max_running: int | None = None
    spread: int = PARTITIONS

    @property
    def running_per_partition(self) -> int | None:
        """The share of max_running that the owner of one partition may use."""
        return None if self.max_running is None else self.max_running // self.spread


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Who is calling: a tenant's key, or an operator's (in development both at once)."""

    id: str
    tenant_id: int | None
    scopes: frozenset[str]
    operator: bool
    expires_in: float | None = None
    """Seconds that it had left when it was looked up; None: it has no end."""
