"""A tenant's limits, audit log, workers, keys and secrets; the tenants and the cluster."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from msgspec import field

from mainspring.sdk.encoding import present
from mainspring.sdk.resources.base import ApiResource, Page
from mainspring.sdk.sync_async import F, both, each
from mainspring.sdk.targets import Duration
from mainspring.wire.admin import AuditEntryOut, ClusterOut, KeyOut, LimitsOut, TenantOut
from mainspring.wire.webhooks import EgressOut, NewSecretOut, RotatedOut
from mainspring.wire.workers import WorkerOut


class Key(KeyOut, kw_only=True):
    """An API key; `api_key` is there once, when it was made."""

    api_key: str | None = None


class Tenant(TenantOut, kw_only=True):
    """A tenant and its limits; `api_key` is there once, when it was made."""

    api_key: str | None = None


class Secret(NewSecretOut, kw_only=True):
    """A signing secret; `secret` is there once, when it was made."""

    secret: Any = None


class RotatedSecret(RotatedOut):
    """The new secret, and the old one with its end."""

    current: Secret
    previous: Secret


class RegisteredWorker(WorkerOut, kw_only=True):
    """A worker as the registry knows it. `about` is what it tells about itself."""

    resources: Any = field(default_factory=dict)
    about: Any = field(default_factory=dict)
    statistics: Any = field(default_factory=dict)


SecretList = list[Secret]


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


class Keys(ApiResource[F]):
    """A tenant's API keys."""

    _path = "/v1/keys"

    @both
    async def create(
        self,
        scopes: Sequence[str],
        *,
        name: str | None = None,
        expires_at: datetime | None = None,
        expires_in: Duration | None = None,
    ) -> Key:
        """Make a key; the answer's `api_key` is shown this once."""
        body = present(scopes=scopes, name=name, expires_at=expires_at, expires_in=expires_in)
        return await self._call("POST", self._path, body, answer=Key)

    @both
    async def get(self, key_id: str) -> Key:
        return await self._call("GET", self._at(key_id), answer=Key)

    @each
    def list(self, *, limit: int | None = None) -> AsyncIterator[Key]:
        """Yield all keys, newest first, revoked and expired ones too."""
        return self._every(self._path, Page[Key], {"limit": limit})

    @both
    async def rotate(self, key_id: str, *, grace: Duration | None = None) -> Key:
        """Make a key in its place; the old one stays valid for `grace`."""
        body = present(grace=grace)
        return await self._call("POST", self._at(key_id, "rotate"), body, answer=Key)

    @both
    async def revoke(self, key_id: str) -> None:
        """End a key now."""
        await self._call("DELETE", self._at(key_id))


class Secrets(ApiResource[F]):
    """The secrets that sign webhooks."""

    _path = "/v1/secrets"

    @both
    async def create(
        self, *, name: str | None = None, kind: str | None = None, secret: str | None = None
    ) -> Secret:
        """Make a secret, or take one over; the answer's `secret` is shown this once."""
        body = present(name=name, kind=kind, secret=secret)
        return await self._call("POST", self._path, body, answer=Secret)

    @both
    async def list(self) -> SecretList:
        """Return the secrets that sign now."""
        found = await self._call("GET", self._path, answer=Page[Secret])
        return found.items

    @both
    async def rotate(
        self, secret_id: UUID | str, *, overlap: float | None = None, secret: str | None = None
    ) -> RotatedSecret:
        """Replace a secret; both sign until the old one ends."""
        body = present(overlap=overlap, secret=secret)
        return await self._call("POST", self._at(secret_id, "rotate"), body, answer=RotatedSecret)

    @both
    async def delete(self, secret_id: UUID | str) -> None:
        await self._call("DELETE", self._at(secret_id))


class Tenants(ApiResource[F]):
    """The tenants of an installation: for operators."""

    _path = "/v1/tenants"

    @both
    async def create(
        self,
        name: str,
        *,
        weight: int | None = None,
        max_running: int | None = None,
        spread: int | None = None,
    ) -> Tenant:
        """Make a tenant; the answer's `api_key` is its first key, shown this once."""
        body = present(name=name, weight=weight, max_running=max_running, spread=spread)
        return await self._call("POST", self._path, body, answer=Tenant)

    @both
    async def get(self, tenant_id: int | str) -> Tenant:
        return await self._call("GET", self._at(tenant_id), answer=Tenant)

    @each
    def list(self, *, limit: int | None = None) -> AsyncIterator[Tenant]:
        """Yield all tenants, newest first."""
        return self._every(self._path, Page[Tenant], {"limit": limit})

    @both
    async def edit(self, tenant_id: int | str, /, **changes: Any) -> Tenant:
        """Change its `weight`, `max_running` or `spread`."""
        return await self._call("PATCH", self._at(tenant_id), changes, answer=Tenant)

    @both
    async def delete(self, tenant_id: int | str) -> None:
        """Delete a tenant with everything it owns."""
        await self._call("DELETE", self._at(tenant_id))

    @both
    async def egress(self, tenant_id: int | str) -> EgressOut:
        """Return what its webhooks may call."""
        return await self._call("GET", self._at(tenant_id, "egress"), answer=EgressOut)

    @both
    async def set_egress(
        self,
        tenant_id: int | str,
        *,
        allow: Sequence[str] = (),
        deny: Sequence[str] = (),
        ca: str | None = None,
        certificate: str | None = None,
        key: str | None = None,
    ) -> EgressOut:
        """Replace its rules and its TLS identity."""
        body = present(allow=allow, deny=deny, ca=ca, certificate=certificate, key=key)
        return await self._call("PUT", self._at(tenant_id, "egress"), body, answer=EgressOut)
