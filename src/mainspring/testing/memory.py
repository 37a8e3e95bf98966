"""As much of the API as handlers and apps call, in memory: clients that need no server."""

from collections.abc import Callable
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec

from mainspring.clock import utc, wall_clock
from mainspring.errors import InvalidRequest, NotFound, RequestError
from mainspring.sdk.client import AsyncClient, Client
from mainspring.sdk.http1 import Request, Response

_ADDRESS = ("http://in-memory", "in-memory")

Answer = tuple[int, object]
Route = Callable[..., Answer]


class MemoryApi:
    """The effect log, and whatever routes are added: a method and a path with `*` for ids."""

    def __init__(self) -> None:
        self._effects: dict[str, tuple[str, dict[str, Any]]] = {}
        """By key: the idempotency key of the first call, and its answer."""
        self._routes: dict[tuple[str, tuple[str, ...]], Route] = {}
        self.route("POST", "/v1/effects", self._note)

    @cached_property
    def client(self) -> Client:
        return Client(*_ADDRESS, transport=_Wire(self, blocking=True))

    @cached_property
    def async_client(self) -> AsyncClient:
        return AsyncClient(*_ADDRESS, transport=_Wire(self, blocking=False))

    def route(self, method: str, path: str, answer: Route) -> None:
        """Serve a path; the answer gets the ids in it, then what `wants` says."""
        self._routes[method, tuple(path.split("/"))] = answer

    def serve(self, request: Request) -> Response:
        path, _, query = request.path.partition("?")
        steps = tuple(unquote(step) for step in path.split("/"))
        for (method, template), answer in self._routes.items():
            if method == request.method and _fits(template, steps):
                ids = [step for step, wanted in zip(steps, template, strict=True) if wanted == "*"]
                return _answered(answer, ids, request, dict(parse_qsl(query)))
        detail = f"{request.method} {path} is not there in memory: use a MainspringServer for it"
        return _problem(NotFound(detail))

    def _note(self, body: Any, key: str | None) -> Answer:
        name = body["key"]
        first = name not in self._effects
        if first:
            now = utc(wall_clock())
            effect = {"key": name, "answer": body.get("answer"), "created_at": now}
            self._effects[name] = (key or "", effect)
        first_key, effect = self._effects[name]
        again = bool(key) and first_key == key
        return (201 if first else 200), {**effect, "first": first or again}


class _Wire:
    """A transport to something in memory."""

    def __init__(self, api: MemoryApi, *, blocking: bool) -> None:
        self._api = api
        self.blocking = blocking

    async def send(self, request: Request, within: float) -> Response:
        return self._api.serve(request)

    async def sleep(self, seconds: float) -> None:
        detail = "nothing happens while this waits: advance the time, then look"
        raise InvalidRequest(detail)

    async def close(self) -> None:
        return


def _fits(template: tuple[str, ...], steps: tuple[str, ...]) -> bool:
    return len(template) == len(steps) and all(
        wanted in ("*", step) for wanted, step in zip(template, steps, strict=True)
    )


def _answered(answer: Route, ids: list[str], request: Request, query: dict[str, str]) -> Response:
    try:
        if request.method == "GET":
            status, body = answer(*ids, query)
        elif request.method == "POST" and not ids:
            given = msgspec.json.decode(request.body) if request.body else None
            status, body = answer(given, request.headers.get("Idempotency-Key"))
        elif request.body:
            status, body = answer(*ids, msgspec.json.decode(request.body))
        else:
            status, body = answer(*ids)
    except RequestError as problem:
        return _problem(problem)
    return Response(status, {}, b"" if body is None else msgspec.json.encode(body))


def _problem(problem: RequestError) -> Response:
    document = {
        "title": problem.title,
        "detail": problem.detail,
        "errors": [{"pointer": p.pointer, "detail": p.detail} for p in problem.problems],
    }
    return Response(problem.status, {}, msgspec.json.encode(document))
