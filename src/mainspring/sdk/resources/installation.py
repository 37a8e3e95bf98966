"""`client.limits()`, `audit()` and `workers()` of a tenant, and `cluster()` for operators."""

from collections.abc import AsyncIterator
from typing import Any

from msgspec import field

from mainspring.sdk.resources.base import ApiResource, Page
from mainspring.sdk.sync_async import F, both, each
from mainspring.wire.admin import AuditEntryOut, ClusterOut, LimitsOut
from mainspring.wire.workers import WorkerOut


class RegisteredWorker(WorkerOut, kw_only=True):
    """A worker as the registry knows it. `about` is what it tells about itself."""

    resources: Any = field(default_factory=dict)
    about: Any = field(default_factory=dict)
    statistics: Any = field(default_factory=dict)


class Installation(ApiResource[F]):
    """The limits, the audit log and the workers of a tenant, and the cluster."""

    @both
    async def limits(self) -> LimitsOut:
        """Return what this tenant may use, and what it uses now."""
        return await self._call("GET", "/v1/limits", answer=LimitsOut)

    @each
    def audit(
        self, *, action: str | None = None, actor: str | None = None, limit: int | None = None
    ) -> AsyncIterator[AuditEntryOut]:
        """Yield the entries of the audit log, newest first."""
        query = {"action": action, "actor": actor, "limit": limit}
        return self._every("/v1/audit", Page[AuditEntryOut], query)

    @each
    def workers(self, *, limit: int | None = None) -> AsyncIterator[RegisteredWorker]:
        """Yield the workers of this tenant, newest first."""
        return self._every("/v1/workers", Page[RegisteredWorker], {"limit": limit})

    @both
    async def cluster(self) -> ClusterOut:
        """Return the nodes, partitions and epochs: for operators."""
        return await self._call("GET", "/v1/cluster", answer=ClusterOut)
