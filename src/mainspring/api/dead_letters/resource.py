"""Dead letters: tasks that failed for good wait here for a person."""

from datetime import UTC
from typing import Any
from uuid import UUID

import msgspec
from starlette.responses import Response

from mainspring.api.dead_letters.filters import letter_filter
from mainspring.api.dead_letters.replaying import Replayer
from mainspring.api.http.decoding import decode_as
from mainspring.api.http.endpoint import TenantCall, json_response
from mainspring.api.http.parameters import encode_cursor, flag, letter_query
from mainspring.api.tasks.reading import task_response
from mainspring.api.tasks.views import new_task_out, task_out
from mainspring.errors import Conflict, NotFound
from mainspring.store.dead_letters import DeadLetterStore, StoredLetter
from mainspring.store.tasks import TaskStore
from mainspring.wire.dead_letters import (
    AttemptOut,
    DeadLetterGroupOut,
    DeadLetterGroups,
    DeadLetterOut,
    DeadLetterPage,
    ReplayedOut,
    ReplayIn,
)

_REPLAY = msgspec.json.Decoder(ReplayIn)


class DeadLetterResource:
    """/v1/dead-letters."""

    def __init__(self, letters: DeadLetterStore, tasks: TaskStore, replayer: Replayer) -> None:
        self._letters = letters
        self._tasks = tasks
        self._replayer = replayer

    async def page(self, call: TenantCall) -> Response:
        query = letter_query(call.request.query_params)
        if query.grouped:
            groups = await self._letters.groups(call.tenant_id, query.where, limit=query.limit)
            return json_response(
                DeadLetterGroups(
                    [
                        DeadLetterGroupOut(
                            g.fingerprint, g.error, g.count, g.first_at, g.last_at, g.example_id
                        )
                        for g in groups
                    ]
                )
            )
        page = await self._letters.list(
            call.tenant_id,
            query.where,
            before=query.before,
            limit=query.limit,
            payloads=query.payloads,
        )
        items = [_letter_out(letter, with_payload=query.payloads) for letter in page.letters]
        cursor = encode_cursor(page.next_before) if page.next_before else None
        return json_response(DeadLetterPage(items, cursor))

    async def one(self, call: TenantCall) -> Response:
        return json_response(_letter_out(await self._existing(call)))

    async def replay(self, call: TenantCall) -> Response:
        """201 with the new task; whoever comes later hears of the same one, with 200."""
        letter_id = _id_in(call)
        replay = await self._replayer.one(call.tenant_id, letter_id, call.actor)
        if replay is None:
            raise _no_such_letter(str(letter_id))
        location = {"Location": f"/v1/tasks/{replay.task_id}"}
        if replay.task is not None:
            return json_response(new_task_out(replay.task), 201, {**location, "ETag": '"1"'})
        task = await self._tasks.get(call.tenant_id, replay.task_id)
        if task is None:
            raise Conflict(f"it was replayed as {replay.task_id}, which has been deleted since")
        response = task_response(task)
        response.headers.update(location)
        return response

    async def replay_many(self, call: TenantCall) -> Response:
        wanted = decode_as(_REPLAY, await call.body())
        where = letter_filter(wanted.filter)
        if flag(call.request.query_params, "dry_run"):
            count = await self._replayer.count(call.tenant_id, where, wanted.first)
            return json_response(ReplayedOut(count, []))
        done = await self._replayer.many(call.tenant_id, where, wanted, call.actor)
        return json_response(done)

    async def archive(self, call: TenantCall) -> Response:
        await self._letters.archive(call.tenant_id, _id_in(call), call.actor)
        letter = await self._existing(call)
        if letter.resolution == "replayed":
            raise Conflict(f"it was replayed as {letter.replayed_as}: there is nothing to archive")
        return json_response(_letter_out(letter))

    async def delete(self, call: TenantCall) -> Response:
        letter_id = _id_in(call)
        if not await self._letters.purge(call.tenant_id, letter_id, call.actor):
            raise _no_such_letter(str(letter_id))
        return Response(status_code=204)

    async def _existing(self, call: TenantCall) -> StoredLetter:
        letter_id = _id_in(call)
        letter = await self._letters.get(call.tenant_id, letter_id)
        if letter is None:
            raise _no_such_letter(str(letter_id))
        return letter


def _id_in(call: TenantCall) -> UUID:
    return call.id_or(_no_such_letter)


def _no_such_letter(text: str) -> NotFound:
    return NotFound(f"there is no dead letter {text[:64]!r}")


def _attempt_out(attempt: dict[str, Any]) -> AttemptOut:
    found = msgspec.convert(attempt, AttemptOut)
    # The database writes times into JSON in the zone of the session that recorded them.
    found.finished_at = found.finished_at.astimezone(UTC)
    return found


def _letter_out(letter: StoredLetter, *, with_payload: bool = True) -> DeadLetterOut:
    task = letter.task
    assert task.finished_at is not None
    return DeadLetterOut(
        id=task.id,
        task=task_out(task, with_payload=with_payload),
        attempts=[_attempt_out(attempt) for attempt in letter.attempts],
        final_error=task.error,
        reason=letter.reason,
        fingerprint=letter.fingerprint,
        resolution=letter.resolution,
        resolved_at=letter.resolved_at,
        replayed_as=letter.replayed_as,
        died_at=task.finished_at,
    )
