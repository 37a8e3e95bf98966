"""Tenants, for operators, and a tenant's own view of its limits."""

from dataclasses import dataclass
from functools import partial
from random import Random

from msgspec import UNSET
from starlette.responses import Response

from mainspring.api.http.auth import Authenticator, tenant_gone
from mainspring.api.http.bodies import json_response, secret_response
from mainspring.api.http.decoding import decode_as
from mainspring.api.http.operations import OperatorCall, TenantCall
from mainspring.api.http.parameters import LARGEST_NUMBER, page_query
from mainspring.api.views import view
from mainspring.config import Config
from mainspring.domain import apikey
from mainspring.domain.partitions import PARTITIONS
from mainspring.domain.tenant import TenantLimits
from mainspring.errors import Conflict, InvalidRequest, Problem
from mainspring.store.keys import MOST_LIVE_KEYS
from mainspring.store.tenants import StoredTenant, TenantStore
from mainspring.wire import admin as wire


@dataclass(frozen=True, slots=True)
class TenantResource:
    """/v1/tenants and /v1/limits."""

    tenants: TenantStore
    authenticator: Authenticator
    config: Config
    unpredictable: Random

    async def create(self, call: OperatorCall) -> Response:
        wanted = decode_as(wire.TenantIn, await call.body())
        spread = wanted.spread or _default_spread(wanted.max_running)
        limits = _checked(TenantLimits(wanted.weight, wanted.max_running, spread))
        text = apikey.make(self.config.key_environment, self.unpredictable)
        answer = partial(_shown_once, key=text)
        made = await self.tenants.create(
            wanted.name, limits, text, wire.SCOPES, call.actor, call.remember(answer)
        )
        if made is None:
            raise Conflict(f"there is a tenant {wanted.name!r} already")
        return answer(made)

    async def page(self, call: OperatorCall) -> Response:
        query = page_query(call.query)
        before = None if query.before is None else min(query.before, LARGEST_NUMBER)
        found = await self.tenants.list(before=before, limit=query.limit)
        cursor = query.cursor_after([tenant.id for tenant in found])
        items = [view(wire.TenantOut, tenant) for tenant in found]
        return json_response(wire.TenantPage(items, cursor))

    async def one(self, call: OperatorCall) -> Response:
        return _shown(call.found(await self.tenants.get(call.tenant_id)))

    async def edit(self, call: OperatorCall) -> Response:
        tenant_id = call.tenant_id
        patch = decode_as(wire.TenantPatch, await call.body())
        changed = await self.tenants.change(tenant_id, lambda old: _merged(old, patch), call.actor)
        return _shown(call.found(changed))

    async def delete(self, call: OperatorCall) -> Response:
        for key_id in call.found(await self.tenants.delete(call.tenant_id, call.actor)):
            self.authenticator.forget(key_id)
        return Response(status_code=204)

    async def limits(self, call: TenantCall) -> Response:
        usage = await self.tenants.usage(call.tenant_id)
        if usage is None:
            raise tenant_gone()
        rate = self.config.requests_per_second or None
        return json_response(
            view(wire.LimitsOut, usage, max_keys=MOST_LIVE_KEYS, requests_per_second=rate)
        )


def _merged(old: TenantLimits, patch: wire.TenantPatch) -> TenantLimits:
    """Return the limits after a patch. Without a spread in it, the default applies whenever a limit
    comes or goes."""
    weight = old.weight if patch.weight is UNSET else patch.weight
    max_running = old.max_running if patch.max_running is UNSET else patch.max_running
    if patch.spread is not UNSET:
        spread = patch.spread
    elif (old.max_running is None) == (max_running is None):
        spread = old.spread
    else:
        spread = _default_spread(max_running)
    return _checked(TenantLimits(weight, max_running, spread))


def _default_spread(max_running: int | None) -> int:
    """Return one partition for a tenant with a limit, where the limit is exact; else all."""
    return PARTITIONS if max_running is None else 1


def _checked(limits: TenantLimits) -> TenantLimits:
    if limits.max_running is not None and limits.max_running < limits.spread:
        detail = f"each of {limits.spread} partitions must get a share of {limits.max_running}"
        raise InvalidRequest("the limit is below the spread", [Problem("/max_running", detail)])
    return limits


def _shown_once(tenant: StoredTenant, key: apikey.KeyText) -> Response:
    body = view(wire.NewTenantOut, tenant, api_key=key.secret)
    return secret_response(body, f"/v1/tenants/{tenant.id}")


def _shown(tenant: StoredTenant) -> Response:
    return json_response(view(wire.TenantOut, tenant))
