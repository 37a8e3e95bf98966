"""/v1/secrets: the secrets that sign a tenant's webhooks, and operators' rules for its egress.

A secret is shown once, in the answer that makes it.
"""

import secrets
from collections.abc import Callable
from datetime import datetime
from ipaddress import ip_network
from uuid import UUID, uuid4

import msgspec
from starlette.responses import Response

from mainspring.api.decoding import decode_as
from mainspring.api.routing import Call, OperatorCall, json_response
from mainspring.api.secret_docs import (
    EgressIn,
    EgressOut,
    NewSecretOut,
    RotatedOut,
    RotateIn,
    SecretIn,
    SecretList,
    SecretOut,
)
from mainspring.domain.webhook import KeyKind, SigningKey
from mainspring.errors import Conflict, InvalidRequest, NotFound, Problem
from mainspring.execution import signing
from mainspring.store.secrets import EgressSettings, NewSecret, StoredSecret, WebhookSecrets

_SECRET = msgspec.json.Decoder(SecretIn)
_ROTATION = msgspec.json.Decoder(RotateIn)
_EGRESS = msgspec.json.Decoder(EgressIn)
_SECRET_HEADERS = {"Cache-Control": "no-store"}


class Secrets:
    """The verbs of /v1/secrets and /v1/tenants/{id}/egress."""

    def __init__(self, store: WebhookSecrets, changed: Callable[[int], None]) -> None:
        self._store = store
        self._changed = changed

    async def list(self, call: Call) -> Response:
        found = await self._store.list(call.tenant_id)
        return json_response(SecretList([_shown(secret) for secret in found]))

    async def create(self, call: Call) -> Response:
        wanted = decode_as(_SECRET, await call.body() or b"{}")
        key = _parsed(wanted.secret) if wanted.secret else _generated(wanted.kind)
        made = await self._store.add(call.tenant_id, _new(key, wanted.name), call.actor)
        if made is None:
            raise Conflict("there are as many live secrets as a tenant may have: delete one first")
        self._changed(call.tenant_id)
        return json_response(_shown_once(made, key), 201, _SECRET_HEADERS)

    async def rotate(self, call: Call) -> Response:
        """A successor of the same kind; both sign until the old one ends."""
        wanted = decode_as(_ROTATION, await call.body() or b"{}")
        old = await self._existing(call)
        key = _parsed(wanted.secret) if wanted.secret else _generated(old.kind)
        if key.kind != old.kind:
            raise InvalidRequest(
                "not a valid successor", [Problem("/secret", "is of another kind")]
            )
        new = _new(key, old.name)
        done = await self._store.rotate(call.tenant_id, old.id, new, wanted.overlap, call.actor)
        if done is None:
            raise Conflict("this secret was rotated already, or there are too many live ones")
        self._changed(call.tenant_id)
        return json_response(
            RotatedOut(_shown_once(done[0], key), _shown(done[1])), 201, _SECRET_HEADERS
        )

    async def delete(self, call: Call) -> Response:
        if not await self._store.delete(call.tenant_id, _secret_id(call), call.actor):
            raise _no_such_secret()
        self._changed(call.tenant_id)
        return Response(status_code=204)

    async def _existing(self, call: Call) -> StoredSecret:
        wanted = _secret_id(call)
        for secret in await self._store.list(call.tenant_id):
            if secret.id == wanted:
                return secret
        raise _no_such_secret()

    # For operators ---------------------------------------------------------------------------

    async def read_egress(self, call: OperatorCall) -> Response:
        settings = await self._store.settings(_tenant_id(call))
        return json_response(
            EgressOut(settings.allow, settings.deny, settings.ca, settings.certificate)
        )

    async def change_egress(self, call: OperatorCall) -> Response:
        wanted = decode_as(_EGRESS, await call.body())
        problems = [
            Problem(f"/{field}/{index}", "is not an address or a network")
            for field, texts in (("allow", wanted.allow), ("deny", wanted.deny))
            for index, text in enumerate(texts)
            if not _is_network(text)
        ]
        if (wanted.certificate is None) != (wanted.key is None):
            problems.append(Problem("/key", "a certificate and its key go together"))
        if problems:
            raise InvalidRequest("some values do not make sense", problems)
        settings = EgressSettings(
            list(wanted.allow), list(wanted.deny), wanted.ca, wanted.certificate
        )
        tenant_id = _tenant_id(call)
        key = None if wanted.key is None else wanted.key.encode()
        if not await self._store.put_settings(tenant_id, settings, key, call.actor):
            raise NotFound(f"there is no tenant {tenant_id}")
        self._changed(tenant_id)
        return await self.read_egress(call)


def _parsed(text: str) -> SigningKey:
    try:
        return signing.parse_secret(text)
    except ValueError as error:
        raise InvalidRequest("the secret is not valid", [Problem("/secret", str(error))]) from None


def _generated(kind: KeyKind) -> SigningKey:
    return SigningKey(kind, secrets.token_bytes(signing.secret_size(kind)))


def _new(key: SigningKey, name: str | None) -> NewSecret:
    return NewSecret(uuid4(), name, key, signing.public_key(key))


def _shown(secret: StoredSecret) -> SecretOut:
    return SecretOut(
        secret.id, secret.name, secret.kind, secret.public_key, secret.created_at, secret.expires_at
    )


def _shown_once(secret: StoredSecret, key: SigningKey) -> NewSecretOut:
    ends: datetime | None = secret.expires_at
    return NewSecretOut(
        secret.id, secret.name, secret.kind, secret.public_key, secret.created_at, ends,
        signing.format_secret(key),
    )  # fmt: skip


def _secret_id(call: Call) -> UUID:
    try:
        return UUID(call.request.path_params["id"])
    except ValueError:
        raise _no_such_secret() from None


def _tenant_id(call: OperatorCall) -> int:
    text: str = call.request.path_params["id"]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise NotFound("there is no such tenant")
    return int(text)


def _no_such_secret() -> NotFound:
    return NotFound("there is no such secret")


def _is_network(text: str) -> bool:
    try:
        ip_network(text)
    except ValueError:
        return False
    return True
