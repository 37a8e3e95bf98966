"""What tenants' admins and operators ask the store for, in one hand."""

from dataclasses import dataclass
from typing import Self

from mainspring.postgres.database import Database
from mainspring.store.audit import AuditStore
from mainspring.store.cluster import Topology
from mainspring.store.key_ring import KeyRing
from mainspring.store.tenants import TenantStore


@dataclass(frozen=True, slots=True)
class Administration:
    """The four books that are kept about the installation."""

    key_ring: KeyRing
    tenants: TenantStore
    audit: AuditStore
    topology: Topology

    @classmethod
    def over(cls, database: Database) -> Self:
        return cls(
            KeyRing(database), TenantStore(database), AuditStore(database), Topology(database)
        )
