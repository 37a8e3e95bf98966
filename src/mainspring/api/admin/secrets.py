"""/v1/secrets: the secrets that sign a tenant's webhooks. Each is shown once, when it is made."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

from starlette.responses import Response

from mainspring.api.http.bodies import json_response, secret_response
from mainspring.api.http.decoding import decode_as
from mainspring.api.http.operations import TenantCall
from mainspring.api.views import no_such_secret, view
from mainspring.domain.webhook import KeyKind, SigningKey
from mainspring.errors import Conflict, InvalidRequest, Problem
from mainspring.execution import signing
from mainspring.store.secrets import NewSecret, SecretStore, StoredSecret, Successor
from mainspring.wire import webhooks as wire


@dataclass(frozen=True, slots=True)
class SecretResource:
    """The verbs of /v1/secrets."""

    store: SecretStore
    changed: Callable[[int], None]

    async def list(self, call: TenantCall) -> Response:
        found = await self.store.list(call.tenant_id)
        return json_response(wire.SecretList([view(wire.SecretOut, secret) for secret in found]))

    async def create(self, call: TenantCall) -> Response:
        wanted = decode_as(wire.SecretIn, await call.body() or b"{}")
        key = _parsed(wanted.secret) if wanted.secret else _generated(wanted.kind)

        def answer(made: StoredSecret) -> Response:
            return secret_response(_shown_once(made, key))

        new = _new(key, wanted.name)
        made = await self.store.add(call.tenant_id, new, call.actor, call.remember(answer))
        if made is None:
            raise Conflict("there are as many live secrets as a tenant may have: delete one first")
        self.changed(call.tenant_id)
        return answer(made)

    async def rotate(self, call: TenantCall) -> Response:
        """Make a successor of the same kind; both sign until the old one ends."""
        wanted = decode_as(wire.RotateIn, await call.body() or b"{}")
        old = await self._existing(call)
        key = _parsed(wanted.secret) if wanted.secret else _generated(old.kind)
        if key.kind != old.kind:
            problem = Problem("/secret", "is of another kind")
            raise InvalidRequest("not a valid successor", [problem])

        def answer(both: Successor) -> Response:
            old_out = view(wire.SecretOut, both[1])
            return secret_response(wire.RotatedOut(_shown_once(both[0], key), old_out))

        new = _new(key, old.name)
        done = await self.store.rotate(
            call.tenant_id, old.id, new, wanted.overlap, call.actor, call.remember(answer)
        )
        if done is None:
            raise Conflict("this secret was rotated already, or there are too many live ones")
        self.changed(call.tenant_id)
        return answer(done)

    async def delete(self, call: TenantCall) -> Response:
        secret_id = call.id_or(no_such_secret)
        if not await self.store.delete(call.tenant_id, secret_id, call.actor):
            raise no_such_secret(secret_id)
        self.changed(call.tenant_id)
        return Response(status_code=204)

    async def _existing(self, call: TenantCall) -> StoredSecret:
        wanted = call.id_or(no_such_secret)
        for secret in await self.store.list(call.tenant_id):
            if secret.id == wanted:
                return secret
        raise no_such_secret(wanted)


def _parsed(text: str) -> SigningKey:
    try:
        return signing.parse_secret(text)
    except ValueError as error:
        raise InvalidRequest("the secret is not valid", [Problem("/secret", str(error))]) from None


def _generated(kind: KeyKind) -> SigningKey:
    return SigningKey(kind, secrets.token_bytes(signing.SECRET_SIZE))


def _new(key: SigningKey, name: str | None) -> NewSecret:
    return NewSecret(uuid4(), name, key, signing.public_key(key))


def _shown_once(secret: StoredSecret, key: SigningKey) -> wire.NewSecretOut:
    return view(wire.NewSecretOut, secret, secret=signing.format_secret(key))
