"""Webhook secrets and settings in the store: sealed on the way in, opened for the sender alone."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec

from mainspring.domain.task import TaskSpec
from mainspring.domain.webhook import KeyKind, SigningKey, TlsIdentity, WebhookProfile
from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Database
from mainspring.postgres.rows import read_row, read_rows
from mainspring.store.answers import BeforeCommit
from mainspring.store.audit import write_entry
from mainspring.store.schedule.schedules import Template
from mainspring.store.vault import CLIENT_KEY, SIGNING_SECRET, TARGET_HEADERS, Vault
from mainspring.store.workflow.definitions import decode_definition

SQL = queries.load("secrets")
MOST_LIVE = 10
"""Each live secret adds a signature to every request."""

_FIRST = UUID(int=0)
_PAGE = 1000
_SEALED = b'"sealed":"'
_decode_spec = msgspec.json.Decoder(TaskSpec).decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """A signing secret without the secret."""

    id: UUID
    name: str | None
    kind: KeyKind
    public_key: str | None
    created_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class NewSecret:
    """A signing secret to be stored."""

    id: UUID
    name: str | None
    key: SigningKey
    public_key: str | None


Successor = tuple[StoredSecret, StoredSecret]
"""A new secret, and the one it follows."""


@dataclass(frozen=True, slots=True)
class EgressSettings:
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
        """What sending for these tenants depends on."""
        found: dict[int, WebhookProfile] = {}
        for row in await self._database.fetch(*SQL["profiles"](tenant_ids=list(tenant_ids))):
            profile = found.get(row["tenant_id"]) or self._profile(row)
            if row["sealed"] is not None:
                secret = self._vault.open(SIGNING_SECRET, row["sealed"])
                key = SigningKey(row["kind"], secret)
                profile = WebhookProfile(
                    (*profile.keys, key), profile.allow, profile.deny, profile.tls
                )
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

    async def add(
        self, tenant_id: int, new: NewSecret, actor: str, conclude: BeforeCommit[StoredSecret]
    ) -> StoredSecret | None:
        """Store a secret; None when the tenant has as many live ones as it may have."""

        async def work(connection: asyncpg.Connection) -> StoredSecret | None:
            made = await self._insert(connection, tenant_id, new, actor, "secret.created")
            if made is not None:
                await conclude(connection, made)
            return made

        return await self._database.transact(work)

    async def list(self, tenant_id: int) -> list[StoredSecret]:
        rows = await self._database.fetch(*SQL["list"](tenant_id=tenant_id))
        return read_rows(StoredSecret, rows)

    async def rotate(
        self,
        tenant_id: int,
        old_id: UUID,
        new: NewSecret,
        overlap: float,
        actor: str,
        conclude: BeforeCommit[Successor],
    ) -> Successor | None:
        """Store the successor of a secret, which ends `overlap` seconds from now: both, the new
        one first. None when there is no such live secret, or one that was rotated already."""

        async def work(connection: asyncpg.Connection) -> Successor | None:
            row = await connection.fetchrow(*SQL["lock"](tenant_id=tenant_id, secret_id=old_id))
            if row is None or row["kind"] != new.key.kind:
                return None
            made = await self._insert(connection, tenant_id, new, actor, "secret.rotated")
            if made is None:
                return None
            ended = await connection.fetch(
                *SQL["end_later"](tenant_id=tenant_id, secret_id=old_id, overlap=overlap)
            )
            both = made, read_row(StoredSecret, ended[0])
            await conclude(connection, both)
            return both

        return await self._database.transact(work)

    async def delete(self, tenant_id: int, secret_id: UUID, actor: str) -> bool:
        async def work(connection: asyncpg.Connection) -> bool:
            gone = await connection.fetchrow(
                *SQL["delete"](tenant_id=tenant_id, secret_id=secret_id)
            )
            if gone is not None:
                await write_entry(connection, tenant_id, actor, "secret.deleted", str(secret_id))
            return gone is not None

        return await self._database.transact(work)

    async def settings(self, tenant_id: int) -> EgressSettings | None:
        """A tenant's settings; None when there is no such tenant."""
        row = await self._database.fetch_row(*SQL["get_settings"](tenant_id=tenant_id))
        return None if row is None else read_row(EgressSettings, row)

    async def put_settings(
        self, tenant_id: int, wanted: EgressSettings, client_key: bytes | None, actor: str
    ) -> bool:
        """Replace a tenant's settings; False when there is no such tenant."""
        sealed = None if client_key is None else self._vault.seal(CLIENT_KEY, client_key)

        async def work(connection: asyncpg.Connection) -> bool:
            row = await connection.fetchrow(
                *SQL["put_settings"](
                    tenant_id=tenant_id,
                    allow=wanted.allow,
                    deny=wanted.deny,
                    ca=wanted.ca,
                    certificate=wanted.certificate,
                    sealed_key=sealed,
                )
            )
            if row is not None:
                await write_entry(
                    connection, tenant_id, actor, "egress.changed", str(tenant_id),
                    allow=wanted.allow, deny=wanted.deny,
                )  # fmt: skip
            return row is not None

        return await self._database.transact(work)

    async def _insert(
        self,
        connection: asyncpg.Connection,
        tenant_id: int,
        new: NewSecret,
        actor: str,
        action: str,
    ) -> StoredSecret | None:
        sealed = self._vault.seal(SIGNING_SECRET, new.key.secret)
        row = await connection.fetchrow(
            *SQL["add"](
                tenant_id=tenant_id,
                id=new.id,
                name=new.name,
                kind=new.key.kind,
                sealed=sealed,
                public_key=new.public_key,
                most_live=MOST_LIVE,
            )
        )
        if row is None:
            return None
        await write_entry(connection, tenant_id, actor, action, str(new.id), name=new.name)
        return read_row(StoredSecret, row)

    # Renewal ---------------------------------------------------------------------------------

    async def renew(self) -> tuple[int, int]:
        """Seal everything anew that is not under the present key: how many were, and how many are
        left because their tasks are running. History is left alone: nobody opens it again."""
        moved = 0
        for row in await self._database.fetch(*SQL["sealed_secrets"]()):
            fresh = self._vault.renewed(SIGNING_SECRET, row["sealed"])
            if fresh is not None:
                await self._database.fetch(
                    *SQL["reseal_secret"](
                        tenant_id=row["tenant_id"], id=row["id"], sealed=row["sealed"], fresh=fresh
                    )
                )
                moved += 1
        for row in await self._database.fetch(*SQL["sealed_settings"]()):
            fresh = self._vault.renewed(CLIENT_KEY, row["sealed_key"])
            if fresh is not None:
                await self._database.fetch(
                    *SQL["reseal_settings"](
                        tenant_id=row["tenant_id"], sealed_key=row["sealed_key"], fresh=fresh
                    )
                )
                moved += 1
        tasks, left = await self._renew_tasks()
        moved += await self._renew_letters() + await self._renew_schedules()
        moved += await self._renew_workflows()
        return moved + tasks, left

    async def _renew_tasks(self) -> tuple[int, int]:
        moved = left = 0
        async for row, fresh in self._stale_specs("sealed_tasks"):
            place = await self._database.fetch_row(
                *SQL["reseal_task"](
                    tenant_id=row["tenant_id"], id=row["id"], spec=row["spec"], fresh=fresh
                )
            )
            if place is None:
                left += 1
                continue
            await self._database.fetch(
                *SQL["wake"](
                    partition=place["partition"], tenant_id=row["tenant_id"], task_id=row["id"]
                )
            )
            moved += 1
        return moved, left

    async def _renew_letters(self) -> int:
        moved = 0
        async for row, fresh in self._stale_specs("sealed_letters"):
            await self._database.fetch(
                *SQL["reseal_letter"](
                    tenant_id=row["tenant_id"], id=row["id"], spec=row["spec"], fresh=fresh
                )
            )
            moved += 1
        return moved

    async def _renew_schedules(self) -> int:
        moved = 0
        async for row, fresh in self._stale_specs("sealed_schedules", self._renewed_template):
            await self._database.fetch(
                *SQL["reseal_schedule"](
                    tenant_id=row["tenant_id"], id=row["id"], spec=row["spec"], fresh=fresh
                )
            )
            moved += 1
        return moved

    async def _renew_workflows(self) -> int:
        moved = 0
        for row in await self._database.fetch(*SQL["sealed_workflows"]()):
            key = dict(row)
            (found,) = await self._database.fetch(*SQL["workflow_version"](**key))
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
        self, statement: str, renewed: Callable[[bytes], bytes | None] | None = None
    ) -> AsyncIterator[tuple[asyncpg.Record, bytes]]:
        renewed = renewed or self._renewed_spec
        tenant_id, after = -1, _FIRST
        while True:
            rows = await self._database.fetch(
                *SQL[statement](tenant_id=tenant_id, after=after, limit=_PAGE)
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
