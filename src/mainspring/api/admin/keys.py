"""API keys of a tenant. A secret is shown once."""

import re
from dataclasses import dataclass
from datetime import datetime
from random import Random

from starlette.responses import Response

from mainspring.api.http.auth import Authenticator, tenant_gone
from mainspring.api.http.bodies import json_response, secret_response
from mainspring.api.http.decoding import decode_as
from mainspring.api.http.operations import TenantCall
from mainspring.api.http.parameters import page_query
from mainspring.api.http.problems import raise_if
from mainspring.api.tasks.validation import seconds_of
from mainspring.api.views import existing, no_such_key, view
from mainspring.clock import Clock
from mainspring.domain import apikey
from mainspring.errors import Conflict, Problem
from mainspring.store.keys import Expiry, KeyRing, StoredKey
from mainspring.wire.admin import KeyIn, KeyOut, KeyPage, NewKeyOut, RotationIn

_SHAPE_OF_IDS = re.compile(r"[0-9A-Za-z_-]{1,64}")
LONGEST_LIFE = 100 * 366 * 86400.0
LONGEST_GRACE = 30 * 86400.0


@dataclass(frozen=True, slots=True)
class KeyResource:
    """/v1/keys."""

    ring: KeyRing
    authenticator: Authenticator
    clock: Clock
    environment: str
    unpredictable: Random

    async def create(self, call: TenantCall) -> Response:
        wanted = decode_as(KeyIn, await call.body())
        expiry = self._expiry(wanted.expires_at, wanted.expires_in, [])
        text = apikey.make(self.environment, self.unpredictable)
        made = await self.ring.create(
            call.tenant_id,
            text,
            name=wanted.name,
            scopes=frozenset(wanted.scopes),
            expiry=expiry or Expiry(),
            actor=call.actor,
            conclude=call.remember(lambda made: _shown_once(made, text)),
        )
        if made is None:
            raise tenant_gone()
        return _shown_once(made, text)

    async def page(self, call: TenantCall) -> Response:
        query = page_query(call.query)
        found = await self.ring.list(call.tenant_id, before=query.before, limit=query.limit)
        cursor = query.cursor_after([key.seq for key in found])
        return json_response(KeyPage([view(KeyOut, key) for key in found], cursor))

    async def one(self, call: TenantCall) -> Response:
        key_id = _id_in(call)
        return json_response(view(KeyOut, await self._existing(call.tenant_id, key_id)))

    async def revoke(self, call: TenantCall) -> Response:
        key_id = _id_in(call)
        if not await self.ring.revoke(call.tenant_id, key_id, call.actor):
            raise no_such_key(key_id)
        self.authenticator.forget(key_id)
        return Response(status_code=204)

    async def rotate(self, call: TenantCall) -> Response:
        key_id = _id_in(call)
        wanted = decode_as(RotationIn, await call.body() or b"{}")
        problems: list[Problem] = []
        grace = _seconds(wanted.grace, "/grace", LONGEST_GRACE, problems)
        expiry = self._expiry(wanted.expires_at, wanted.expires_in, problems)
        text = apikey.make(self.environment, self.unpredictable)
        made = await self.ring.rotate(
            call.tenant_id,
            key_id,
            text,
            grace=grace,
            expiry=expiry,
            actor=call.actor,
            conclude=call.remember(lambda made: _shown_once(made, text)),
        )
        if made is None:
            await self._existing(call.tenant_id, key_id)
            raise Conflict("the key has ended: make a new one instead")
        self.authenticator.forget(key_id)  # not yet, but what is remembered of it is out of date
        return _shown_once(made, text)

    async def _existing(self, tenant_id: int, key_id: str) -> StoredKey:
        return existing(await self.ring.get(tenant_id, key_id), no_such_key, key_id)

    def _expiry(
        self, at: datetime | None, after: float | str | None, problems: list[Problem]
    ) -> Expiry | None:
        """Return when a key shall end, None if the request does not say; raise all problems."""
        seconds = None
        if at is not None and after is not None:
            problems.append(Problem("/expires_in", "give either expires_at or expires_in"))
        elif at is not None:
            left = at.timestamp() - self.clock.now() if 1 < at.year < 9999 else -1.0
            _check_span(left, "/expires_at", LONGEST_LIFE, problems)
        elif after is not None:
            seconds = _seconds(after, "/expires_in", LONGEST_LIFE, problems)
            _check_span(seconds, "/expires_in", LONGEST_LIFE, problems)
        raise_if(problems)
        return None if at is None and seconds is None else Expiry(at, seconds)


def _shown_once(key: StoredKey, text: apikey.KeyText) -> Response:
    body = view(NewKeyOut, key, api_key=text.secret)
    return secret_response(body, f"/v1/keys/{key.id}")


def _seconds(given: float | str, pointer: str, most: float, problems: list[Problem]) -> float:
    seconds = seconds_of(given, pointer, problems)
    if seconds > most:
        problems.append(Problem(pointer, f"{most:.0f} seconds is the most"))
    return seconds


def _check_span(seconds: float, pointer: str, most: float, problems: list[Problem]) -> None:
    if not 0 < seconds <= most and not problems:
        days = most / 86400
        problems.append(Problem(pointer, f"is not in the future, or more than {days:g} days away"))


def _id_in(call: TenantCall) -> str:
    """Return the id in the path; raise NotFound for what is not an id."""
    text: str = call.request.path_params["id"]
    if _SHAPE_OF_IDS.fullmatch(text) is None:
        raise no_such_key(text)
    return text
