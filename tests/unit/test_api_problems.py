"""Problem documents, and the layer that every request passes."""

from random import Random

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from structlog.testing import capture_logs

from mainspring.api.http.endpoint import Router
from mainspring.api.http.middleware import RequestMiddleware
from mainspring.errors import (
    Conflict,
    InvalidRequest,
    Problem,
    StoreUnavailable,
    TooLarge,
    Unauthenticated,
)
from mainspring.observe.metrics import Metrics
from support.asgi import AsgiClient


class Raiser:
    """An application that fails in the way a test wants."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.metrics = Metrics()
        self.app = RequestMiddleware(
            Router({"/x": self.endpoint}), metrics=self.metrics, rng=Random(1), max_body=10
        )
        self.client = AsgiClient(self.app)

    async def endpoint(self, scope: Scope, receive: Receive, send: Send) -> None:
        await Request(scope, receive).body()
        if self.error:
            raise self.error
        await Response(b"fine")(scope, receive, send)


@pytest.fixture
def raiser() -> Raiser:
    return Raiser()


async def test_a_request_error_says_what_and_where(raiser: Raiser) -> None:
    raiser.error = InvalidRequest("no", [Problem("/a", "is wrong"), Problem("/b", "too")])
    answer = await raiser.client.post("/x", x_request_id="my-id")
    assert answer.status == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-request-id"] == "my-id"
    assert answer.json() == {
        "type": "urn:mainspring:problem:invalid-request",
        "title": "The request is not valid",
        "status": 422,
        "detail": "no",
        "instance": "/x",
        "request_id": "my-id",
        "errors": [{"pointer": "/a", "detail": "is wrong"}, {"pointer": "/b", "detail": "too"}],
    }


@pytest.mark.parametrize(
    ("error", "status", "header"),
    [
        (Unauthenticated("who?"), 401, "www-authenticate"),
        (StoreUnavailable("lost"), 503, "retry-after"),
        (TooLarge("big"), 413, "connection"),
        (Conflict("no"), 409, "x-request-id"),
    ],
)
async def test_statuses_and_their_headers(
    raiser: Raiser, error: Exception, status: int, header: str
) -> None:
    raiser.error = error
    with capture_logs():
        answer = await raiser.client.post("/x")
    assert answer.status == status
    assert header in answer.headers


async def test_internal_errors_are_logged_and_not_shown(raiser: Raiser) -> None:
    raiser.error = RuntimeError("the secret is hunter2")
    with capture_logs() as lines:
        answer = await raiser.client.post("/x")
    assert answer.status == 500
    assert b"hunter2" not in answer.body
    assert lines[0]["action"] == "request.failed"
    assert lines[0]["request_id"] == answer.json()["request_id"]


async def test_unknown_routes_are_problems_too(raiser: Raiser) -> None:
    answer = await raiser.client.get("/nowhere")
    assert (answer.status, answer.json()["type"]) == (404, "urn:mainspring:problem:not-found")


async def test_a_strange_request_id_is_replaced(raiser: Raiser) -> None:
    answer = await raiser.client.post("/x", x_request_id="a b\x0b")
    assert answer.headers["x-request-id"] != "a b\x0b"
    assert len(answer.headers["x-request-id"]) == 32


async def test_a_large_body_is_refused_before_it_is_read(raiser: Raiser) -> None:
    assert (await raiser.client.post("/x", b"0123456789")).status == 200
    answer = await raiser.client.call("POST", "/x", chunks=[], headers={"content-length": "11"})
    assert answer.status == 413
    answer = await raiser.client.call("POST", "/x", chunks=[b"01234"] * 3 + [b"unread"])
    assert answer.status == 413
    answer = await raiser.client.call("POST", "/x", headers={"content-length": "-1"})
    assert answer.status == 400


async def test_requests_are_counted_by_a_bounded_set_of_labels(raiser: Raiser) -> None:
    for number in range(3):
        await raiser.client.call(f"ODD{number}", f"/nowhere/{number}")
    text = raiser.metrics.exposition().decode()
    assert 'http_requests_total{method="other",route="unknown",status="404"} 3.0' in text
