"""Webhook secrets and settings, sealed when they are written and opened for the sender only."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import asyncpg
import msgspec

from mainspring.domain.task import TaskSpec
from mainspring.domain.webhook import KeyKind, SigningKey, TlsIdentity, WebhookProfile
from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Database, transaction
from mainspring.store.answers import BeforeCommit
from mainspring.store.audit import write_entry
from mainspring.store.schedules.schedules import Template
from mainspring.store.vault import CLIENT_KEY, SIGNING_SECRET, TARGET_HEADERS, Vault
from mainspring.store.workflows.definitions import decode_definition

SQL = queries.load("secrets")
MOST_LIVE = 10
"""Each live secret adds a signature to every request."""

_FIRST = UUID(int=0)
_PAGE = 1000
_SEALED = b'"sealed":"'
_decode_spec = msgspec.json.Decoder(TaskSpec).decode
_encode = msgspec.json.Encoder().encode


class StoredSecret(NamedTuple):
    """A signing secret without the secret."""

    id: UUID
    name: str | None
    kind: KeyKind
    public_key: str | None
    created_at: datetime
    expires_at: datetime | None


class NewSecret(NamedTuple):
    """A signing secret to be stored."""

    id: UUID
    name: str | None
    key: SigningKey
    public_key: str | None


Successor = tuple[StoredSecret, StoredSecret]
"""A new secret, and the one it follows."""


class EgressSettings(NamedTuple):
    """A tenant's own rules and TLS identity; the client key goes in and never comes out."""

    allow: list[str]
    deny: list[str]
    ca: str | None = None
    certificate: str | None = None


class SecretStore:
    """Signing secrets and profiles of every tenant, and their renewal."""

    def __init__(self, database: Database, vault: Vault) -> None:
        self._database = database
        self._vault = vault

    async def profiles(self, tenant_ids: Sequence[int]) -> Mapping[int, WebhookProfile]:
        """Return the webhook profiles of these tenants."""
        found: dict[int, WebhookProfile] = {}
        for row in await SQL["profiles"].fetch(self._database, tenant_ids=list(tenant_ids)):
            profile = found.get(row["tenant_id"]) or self._profile(row)
            if row["sealed"] is not None:
                secret = self._vault.open(SIGNING_SECRET, row["sealed"])
                key = SigningKey(row["kind"], secret)
                profile = replace(profile, keys=(*profile.keys, key))
            found[row["tenant_id"]] = profile
        return found

    def _profile(self, row: asyncpg.Record) -> WebhookProfile:
        tls = None
        if row["ca"] is not None or row["certificate"] is not None:
            sealed = row["sealed_key"]
            tls = TlsIdentity(
                row["ca"].encode() if row["ca"] else None,
                row["certificate"].encode() if row["certificate"] else None,
                None if sealed is None else self._vault.open(CLIENT_KEY, sealed),
            )
        return WebhookProfile((), tuple(row["allow"] or ()), tuple(row["deny"] or ()), tls)

    @transaction
    async def add(
        self,
        connection: asyncpg.Connection,
        tenant_id: int,
        new: NewSecret,
        actor: str,
        conclude: BeforeCommit[StoredSecret],
    ) -> StoredSecret | None:
        """Store a secret; None when the tenant has as many live ones as it may have."""
        made = await self._insert(connection, tenant_id, new, actor, "secret.created")
        if made is not None:
            await conclude(connection, made)
        return made

    async def list(self, tenant_id: int) -> list[StoredSecret]:
        return await SQL["list"].rows(self._database, StoredSecret, tenant_id=tenant_id)

    @transaction
    async def rotate(
        self,
        connection: asyncpg.Connection,
        tenant_id: int,
        old_id: UUID,
        new: NewSecret,
        overlap: float,
        actor: str,
        conclude: BeforeCommit[Successor],
    ) -> Successor | None:
        """Store the successor of a secret, which ends after `overlap` seconds; return both. None
        when there is no such live secret, or it was rotated already."""
        row = await SQL["lock"].record(connection, tenant_id=tenant_id, secret_id=old_id)
        if row is None or row["kind"] != new.key.kind:
            return None
        made = await self._insert(connection, tenant_id, new, actor, "secret.rotated")
        if made is None:
            return None
        both = (
            made,
            await SQL["end_later"].one(
                connection, StoredSecret, tenant_id=tenant_id, secret_id=old_id, overlap=overlap
            ),
        )
        await conclude(connection, both)
        return both

    @transaction
    async def delete(
        self, connection: asyncpg.Connection, tenant_id: int, secret_id: UUID, actor: str
    ) -> bool:
        gone = await SQL["delete"].found(connection, tenant_id=tenant_id, secret_id=secret_id)
        if gone:
            await write_entry(connection, tenant_id, actor, "secret.deleted", str(secret_id))
        return gone

    async def settings(self, tenant_id: int) -> EgressSettings | None:
        """Return a tenant's settings; None when there is no such tenant."""
        return await SQL["get_settings"].row(self._database, EgressSettings, tenant_id=tenant_id)

    @transaction
    async def put_settings(
        self,
        connection: asyncpg.Connection,
        tenant_id: int,
        wanted: EgressSettings,
        client_key: bytes | None,
        actor: str,
    ) -> bool:
        """Replace a tenant's settings; False when there is no such tenant."""
        sealed = None if client_key is None else self._vault.seal(CLIENT_KEY, client_key)
        written = await SQL["put_settings"].found(
            connection, **wanted._asdict(), tenant_id=tenant_id, sealed_key=sealed
        )
        if written:
            await write_entry(
                connection, tenant_id, actor, "egress.changed", str(tenant_id),
                allow=wanted.allow, deny=wanted.deny,
            )  # fmt: skip
        return written

    async def _insert(
        self,
        connection: asyncpg.Connection,
        tenant_id: int,
        new: NewSecret,
        actor: str,
        action: str,
    ) -> StoredSecret | None:
        sealed = self._vault.seal(SIGNING_SECRET, new.key.secret)
        made = await SQL["add"].row(
            connection,
            StoredSecret,
            tenant_id=tenant_id,
            id=new.id,
            name=new.name,
            kind=new.key.kind,
            sealed=sealed,
            public_key=new.public_key,
            most_live=MOST_LIVE,
        )
        if made is not None:
            await write_entry(connection, tenant_id, actor, action, str(new.id), name=new.name)
        return made

    # Renewal ---------------------------------------------------------------------------------

    async def renew(self) -> tuple[int, int]:
        """Seal everything anew that is not under the present key, except history, which is never
        opened. Return how many were, and how many are left because their tasks run."""
        moved = await self._renew_column(
            "sealed_secrets", "reseal_secret", "sealed", SIGNING_SECRET
        )
        moved += await self._renew_column(
            "sealed_settings", "reseal_settings", "sealed_key", CLIENT_KEY
        )
        tasks, left = await self._renew_tasks()
        moved += await self._renew_specs("sealed_letters", "reseal_letter", self._renewed_spec)
        moved += await self._renew_specs(
            "sealed_schedules", "reseal_schedule", self._renewed_template
        )
        moved += await self._renew_workflows()
        return moved + tasks, left

    async def _renew_column(self, sealed: str, reseal: str, column: str, purpose: str) -> int:
        moved = 0
        for row in await SQL[sealed].fetch(self._database):
            fresh = self._vault.renewed(purpose, row[column])
            if fresh is not None:
                await SQL[reseal].run(self._database, **row, fresh=fresh)
                moved += 1
        return moved

    async def _renew_tasks(self) -> tuple[int, int]:
        moved = left = 0
        async for row, fresh in self._stale_specs("sealed_tasks", self._renewed_spec):
            partition = await SQL["reseal_task"].value_or_none(
                self._database, int, **row, fresh=fresh
            )
            if partition is None:
                left += 1
                continue
            tenant_id, task_id = row["tenant_id"], row["id"]
            await SQL["wake"].run(
                self._database, partition=partition, tenant_id=tenant_id, task_id=task_id
            )
            moved += 1
        return moved, left

    async def _renew_specs(
        self, sealed: str, reseal: str, renewed: Callable[[bytes], bytes | None]
    ) -> int:
        moved = 0
        async for row, fresh in self._stale_specs(sealed, renewed):
            await SQL[reseal].run(self._database, **row, fresh=fresh)
            moved += 1
        return moved

    async def _renew_workflows(self) -> int:
        moved = 0
        for row in await SQL["sealed_workflows"].fetch(self._database):
            key = dict(row)
            (found,) = await SQL["workflow_version"].fetch(self._database, **key)
            fresh = encoded = found["definition"]
            for step in decode_definition(encoded).steps:
                spec = step.template.spec.encode()
                renewed = self._renewed_spec(spec) if _SEALED in spec else None
                if renewed is not None:
                    # A spec is a text in the definition: the same bytes, with quotes escaped.
                    fresh = fresh.replace(_as_text(spec), _as_text(renewed))
            if fresh != encoded:
                call = SQL["reseal_workflow"](**key, definition=encoded, fresh=fresh)
                await self._database.fetch(*call)
                moved += 1
        return moved

    async def _stale_specs(
        self, sealed: str, renewed: Callable[[bytes], bytes | None]
    ) -> AsyncIterator[tuple[asyncpg.Record, bytes]]:
        """Yield specs that hold something sealed with an old key, each with its replacement."""
        tenant_id, after = -1, _FIRST
        while True:
            rows = await SQL[sealed].fetch(
                self._database, tenant_id=tenant_id, after=after, limit=_PAGE
            )
            for row in rows:
                if _SEALED in row["spec"]:
                    fresh = renewed(row["spec"])
                    if fresh is not None:
                        yield row, fresh
            if len(rows) < _PAGE:
                return
            tenant_id, after = rows[-1]["tenant_id"], rows[-1]["id"]

    def _renewed_template(self, encoded: bytes) -> bytes | None:
        template = msgspec.json.decode(encoded, type=Template)
        spec = self._renewed_spec(bytes(template.spec))
        if spec is None:
            return None
        return msgspec.json.encode(msgspec.structs.replace(template, spec=msgspec.Raw(spec)))

    def _renewed_spec(self, encoded: bytes) -> bytes | None:
        secret = _decode_spec(encoded).target.secret
        if secret is None:
            return None
        fresh = self._vault.renewed(TARGET_HEADERS, secret.sealed)
        # Text for text, so that whatever else is in the spec stays as it is.
        return None if fresh is None else encoded.replace(secret.sealed.encode(), fresh.encode())


def _as_text(document: bytes) -> bytes:
    return msgspec.json.encode(document.decode())
