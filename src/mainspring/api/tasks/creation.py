"""Creating tasks: one, or many at once."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from mainspring.api.http.auth import tenant_gone
from mainspring.api.http.bodies import RawJsonResponse, encode_json
from mainspring.api.http.decoding import (
    decode_batch,
    decode_lines,
    decode_task,
    readable_task,
    readable_tasks,
)
from mainspring.api.http.fast_path import PendingResponse
from mainspring.api.http.idempotency import Answered, Idempotency, RequestKey, hash_of, key_in
from mainspring.api.http.operations import TenantCall
from mainspring.api.tasks.ingest import Ingest
from mainspring.api.tasks.validation import TaskValidator
from mainspring.api.tasks.views import new_task_json
from mainspring.config import Config
from mainspring.errors import RequestError
from mainspring.store.creation import Creation, Keyed, NewTask
from mainspring.wire.tasks import Ids

_NDJSON = "application/x-ndjson"
_ID_OPENS = b'{"id":"'

Prepared = tuple[Sequence[NewTask], bytes]
"""Tasks that may be inserted, and the answer to give once they are."""


@dataclass(frozen=True, slots=True)
class TaskCreation:
    """POST /v1/tasks and POST /v1/tasks/batch."""

    config: Config
    validator: TaskValidator
    ingest: Ingest
    idempotency: Idempotency

    async def one(self, call: TenantCall) -> Response:
        body = await call.body()

        async def prepare() -> Prepared:
            try:
                wanted = decode_task(body)
            except RequestError as error:
                await self.validator.refuse(error, readable_task(body))
            task = self.validator.one(call.tenant_id, wanted)
            return [task], new_task_json(task)

        outcome = await self._create(call, body, prepare)
        if outcome.status == 200:  # a dry run: there is nothing under that id
            return _answer(outcome, {})
        headers = {"Location": f"/v1/tasks/{_id_in(outcome.body)}", "ETag": '"1"'}
        return _answer(outcome, headers)

    def create_fast(self, tenant_id: int, body: bytes) -> PendingResponse:
        """Create a task on the fast path: without an Idempotency-Key and options."""
        task = self.validator.one(tenant_id, decode_task(body))
        answer = new_task_json(task)
        inserted = self.ingest.create(Creation(tenant_id, (task,)))

        def created() -> Response:
            if not inserted.result():
                raise tenant_gone()
            headers = {"Location": f"/v1/tasks/{_id_in(answer)}", "ETag": '"1"'}
            return RawJsonResponse(answer, 201, headers)

        return PendingResponse(inserted, created)

    async def batch(self, call: TenantCall) -> Response:
        body = await call.body()

        async def prepare() -> Prepared:
            most, as_lines = self.config.max_batch, _is_ndjson(call.request)
            try:
                wanted = (decode_lines if as_lines else decode_batch)(body, most=most)
            except RequestError as error:
                rest = readable_tasks(body, most=most, as_lines=as_lines)
                await self.validator.refuse(error, rest)
            tasks = await self.validator.many(call.tenant_id, wanted)
            return tasks, encode_json(Ids([task.id for task in tasks]))

        return _answer(await self._create(call, body, prepare), {})

    async def _create(
        self, call: TenantCall, body: bytes, prepare: Callable[[], Awaitable[Prepared]]
    ) -> Answered:
        key = key_in(call.request)
        if call.request.scope["query_string"] and call.dry_run:
            return Answered((await prepare())[1], 200, replayed=False)
        if key is None:
            tasks, answer = await prepare()
            if not await self.ingest.create(Creation(call.tenant_id, tasks)):
                raise tenant_gone()
            return Answered(answer, 201, replayed=False)
        body_hash = hash_of(call.request, body)

        async def attempt() -> bytes | None:
            tasks, answer = await prepare()
            # The whole answer is known before the insert, so that both are stored together.
            keyed = Keyed(key, body_hash, answer, self.config.idempotency_ttl)
            created = await self.ingest.create(Creation(call.tenant_id, tasks, keyed))
            return answer if created else None

        return await self.idempotency.create(RequestKey(call.tenant_id, key, body_hash), attempt)


def _id_in(answer: bytes) -> str:
    """Return the id in an answer with a task: its first field, in stored answers too."""
    return answer[len(_ID_OPENS) : len(_ID_OPENS) + 36].decode("ascii")


def _is_ndjson(request: Request) -> bool:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == _NDJSON


def _answer(outcome: Answered, headers: dict[str, str]) -> Response:
    if outcome.replayed:
        headers["Idempotency-Replayed"] = "true"
    return RawJsonResponse(outcome.body, outcome.status, headers)
