"""Dead letters: tasks that failed for good and wait for a person."""

from dataclasses import dataclass
from datetime import UTC
from typing import Any

import msgspec
from starlette.datastructures import QueryParams
from starlette.responses import Response

from mainspring.api.dead_letters.replaying import Replayer
from mainspring.api.http.bodies import json_response
from mainspring.api.http.decoding import decode_as
from mainspring.api.http.operations import TenantCall
from mainspring.api.http.parameters import ListQuery, Parameters, next_cursor
from mainspring.api.http.problems import raise_if
from mainspring.api.tasks.filters import instant_in, labels_in
from mainspring.api.tasks.views import new_task_out, task_out
from mainspring.api.views import existing, item_response, no_such_dead_letter, view
from mainspring.errors import Conflict, Problem
from mainspring.store.dead_letters import DeadLetterStore, LetterFilter, StoredLetter
from mainspring.store.tasks import TaskStore
from mainspring.wire import dead_letters as wire


@dataclass(frozen=True, slots=True)
class DeadLetterResource:
    """/v1/dead-letters."""

    store: DeadLetterStore
    tasks: TaskStore
    replayer: Replayer

    async def page(self, call: TenantCall) -> Response:
        (where, before, limit, payloads), grouped = _query(call.query)
        if grouped:
            groups = await self.store.groups(call.tenant_id, where, limit=limit)
            return json_response(
                wire.DeadLetterGroups([view(wire.DeadLetterGroupOut, group) for group in groups])
            )
        page = await self.store.list(
            call.tenant_id, where, before=before, limit=limit, payloads=payloads
        )
        items = [_dead_letter_out(letter, with_payload=payloads) for letter in page.items]
        return json_response(wire.DeadLetterPage(items, next_cursor(page.next_before)))

    async def one(self, call: TenantCall) -> Response:
        return json_response(_dead_letter_out(await self._existing(call)))

    async def replay(self, call: TenantCall) -> Response:
        """Return 201 with the new task; a repeated request gets the same task, with 200."""
        dead_id = call.id_or(no_such_dead_letter)
        done = await self.replayer.one(call.tenant_id, dead_id, call.actor)
        replay = existing(done, no_such_dead_letter, dead_id)
        location = f"/v1/tasks/{replay.task_id}"
        if replay.task is not None:
            return item_response(new_task_out(replay.task), 1, 201, location)
        task = await self.tasks.get(call.tenant_id, replay.task_id)
        if task is None:
            raise Conflict(f"it was replayed as {replay.task_id}, which has been deleted since")
        return item_response(task_out(task), task.rev, 200, location)

    async def replay_many(self, call: TenantCall) -> Response:
        wanted = decode_as(wire.ReplayIn, await call.body())
        where = _filter(wanted.filter)
        if call.dry_run:
            count = await self.replayer.count(call.tenant_id, where, wanted.first)
            return json_response(wire.ReplayedOut(count, []))
        done = await self.replayer.many(call.tenant_id, where, wanted, call.actor)
        return json_response(done)

    async def archive(self, call: TenantCall) -> Response:
        await self.store.archive(call.tenant_id, call.id_or(no_such_dead_letter), call.actor)
        letter = await self._existing(call)
        if letter.resolution == "replayed":
            raise Conflict(f"it was replayed as {letter.replayed_as}: there is nothing to archive")
        return json_response(_dead_letter_out(letter))

    async def delete(self, call: TenantCall) -> Response:
        task_id = call.id_or(no_such_dead_letter)
        if not await self.store.purge(call.tenant_id, task_id, call.actor):
            raise no_such_dead_letter(task_id)
        return Response(status_code=204)

    async def _existing(self, call: TenantCall) -> StoredLetter:
        task_id = call.id_or(no_such_dead_letter)
        found = await self.store.get(call.tenant_id, task_id)
        return existing(found, no_such_dead_letter, task_id)


def _query(params: QueryParams) -> tuple[ListQuery[LetterFilter], bool]:
    """Return the query of a list of dead letters, and whether it asks for groups instead."""
    given = Parameters(params)
    where = LetterFilter(
        name=given.text("name"),
        queue=given.text("queue"),
        labels=given.labels(),
        fingerprint=given.text("fingerprint"),
        died_after=given.instant("died_after"),
        died_before=given.instant("died_before"),
        resolved=given.flag("resolved") if "resolved" in given else None,
    )
    payloads, grouped = given.flag("payload", default=True), given.flag("group")
    return given.list_query(where, payloads=payloads), grouped


def _filter(given: wire.LetterFilterIn) -> LetterFilter:
    """Return the filter in a body; raise all of its problems together."""
    problems: list[Problem] = []
    if given.resolved:
        problems.append(Problem("/filter/resolved", "only unresolved ones can be replayed"))
    found = LetterFilter(
        name=given.name,
        queue=given.queue,
        labels=labels_in(given, problems),
        fingerprint=given.fingerprint,
        died_after=instant_in(given.died_after, "died_after", problems),
        died_before=instant_in(given.died_before, "died_before", problems),
        resolved=False,
    )
    raise_if(problems, "the filter does not make sense")
    return found


def _attempt_out(attempt: dict[str, Any]) -> wire.AttemptOut:
    found = msgspec.convert(attempt, wire.AttemptOut)
    # The database writes times into JSON in the zone of the session that recorded them.
    found.finished_at = found.finished_at.astimezone(UTC)
    return found


def _dead_letter_out(letter: StoredLetter, *, with_payload: bool = True) -> wire.DeadLetterOut:
    task = letter.task
    assert task.finished_at is not None
    return view(
        wire.DeadLetterOut, letter,
        id=task.id,
        task=task_out(task, with_payload=with_payload),
        attempts=[_attempt_out(attempt) for attempt in letter.attempts],
        final_error=task.error,
        died_at=task.finished_at,
    )  # fmt: skip
