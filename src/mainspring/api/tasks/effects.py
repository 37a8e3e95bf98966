"""The effect log: exactly one of all callers with a key is told that it is the first."""

from dataclasses import dataclass

import msgspec
from starlette.responses import Response

from mainspring.api.http.bodies import json_response
from mainspring.api.http.decoding import decode_as
from mainspring.api.http.operations import TenantCall
from mainspring.api.http.payloads import payload_problems
from mainspring.api.http.problems import raise_if
from mainspring.api.tasks.validation import seconds_of
from mainspring.errors import Problem
from mainspring.store.answers import EffectStore
from mainspring.wire.dead_letters import LONGEST_EFFECT, EffectIn, EffectOut
from mainspring.wire.tasks import DAY


@dataclass(frozen=True, slots=True)
class EffectLog:
    """/v1/effects."""

    effects: EffectStore
    max_answer: int

    async def note(self, call: TenantCall) -> Response:
        """Return 201 to the first, 200 and the first one's answer to all others."""
        effect = decode_as(EffectIn, await call.body(), lambda given: [given.answer])
        answer = bytes(effect.answer)
        problems = [problem.at("/answer") for problem in payload_problems(answer, self.max_answer)]
        unreadable: list[Problem] = []
        ttl = 7 * DAY if effect.ttl is None else seconds_of(effect.ttl, "/ttl", unreadable)
        problems += unreadable
        if not unreadable and not 0 < ttl <= LONGEST_EFFECT:
            problems.append(Problem("/ttl", f"is not between 0 and {LONGEST_EFFECT:.0f} seconds"))
        raise_if(problems)
        noted = await self.effects.note(call.tenant_id, effect.key, answer, ttl)
        shown = EffectOut(effect.key, noted.first, msgspec.Raw(noted.answer), noted.created_at)
        return json_response(shown, 201 if noted.first else 200)
