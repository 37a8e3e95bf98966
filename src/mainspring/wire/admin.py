"""The shapes of what admins and operators send and read: keys, tenants, limits, the cluster."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Struct, UnsetType

from mainspring.domain.partitions import PARTITIONS
from mainspring.wire import patterns
from mainspring.wire.tasks import Delay, Instant, Line

Scope = Literal["read", "write", "work", "admin"]
SCOPES: frozenset[Scope] = frozenset({"read", "write", "work", "admin"})

TenantName = Annotated[str, Meta(pattern=patterns.TENANT)]
Weight = Annotated[int, Meta(ge=1, le=1000)]
MaxRunning = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Spread = Annotated[int, Meta(ge=1, le=PARTITIONS)]


class KeyIn(Struct, forbid_unknown_fields=True):
    """A key as an admin asks for it."""

    scopes: Annotated[list[Scope], Meta(min_length=1, max_length=16)]
    name: Line | None = None
    expires_at: Instant | None = None
    expires_in: Delay | None = None


class RotationIn(Struct, forbid_unknown_fields=True):
    """How a key is replaced."""

    grace: Delay = 86400.0
    expires_at: Instant | None = None
    expires_in: Delay | None = None


class KeyOut(Struct):
    """A key as it may be shown."""

    id: str
    prefix: str | None
    name: str | None
    scopes: list[str]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


class NewKeyOut(KeyOut):
    """A new key with its secret, which is shown this once."""

    api_key: str


class KeyPage(Struct):
    items: list[KeyOut]
    next_cursor: str | None


class TenantIn(Struct, forbid_unknown_fields=True):
    """A tenant as an operator asks for it."""

    name: TenantName
    weight: Weight = 1
    max_running: MaxRunning | None = None
    spread: Spread | None = None


class TenantPatch(Struct, forbid_unknown_fields=True):
    """What shall differ about a tenant."""

    weight: Weight | UnsetType = UNSET
    max_running: MaxRunning | UnsetType | None = UNSET
    spread: Spread | UnsetType = UNSET


class TenantOut(Struct):
    """A tenant and its limits."""

    id: int
    name: str
    weight: int
    max_running: int | None
    spread: int
    created_at: datetime


class NewTenantOut(TenantOut):
    """A new tenant with the secret of its first key, which is shown this once."""

    api_key: str


class TenantPage(Struct):
    items: list[TenantOut]
    next_cursor: str | None


class LimitsOut(Struct):
    """What a tenant may use, and what it uses now."""

    weight: int
    max_running: int | None
    spread: int
    running: int
    running_at_least: bool
    keys: int
    max_keys: int
    requests_per_second: float | None


class NodeOut(Struct):
    """A node. `silent` is how many seconds ago it was last heard of."""

    id: UUID
    name: str
    url: str | None
    version: str
    state: str
    epoch: int
    started_at: datetime
    silent: float
    partitions: int


class PartitionOut(Struct):
    partition: int
    owner: UUID | None
    epoch: int


class SchedulesOut(Struct):
    """Schedules of all tenants whose next time has passed without a decision, and since when the
    first of them stands; those whose next time was computed with another tz database."""

    overdue: int
    overdue_since: datetime | None
    outdated: int


class ClusterOut(Struct):
    """The cluster. `skew` is the largest share of partitions over a fair one: 1.0 is even.

    `tzdata` is the tz database that the answering node goes by.
    """

    nodes: list[NodeOut]
    partitions: list[PartitionOut]
    unowned: int
    skew: float
    tzdata: str
    schedules: SchedulesOut


class AuditEntryOut(Struct):
    """A change. `tenant_id` is null for one that concerns the installation."""

    id: int
    tenant_id: int | None
    at: datetime
    actor: str
    action: str
    subject: str
    detail: dict[str, Any] | None


class AuditPage(Struct):
    items: list[AuditEntryOut]
    next_cursor: str | None
