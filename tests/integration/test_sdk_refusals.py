"""The SDK at a real node that says no: what errors, tasks and the worker's log say then."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from mainspring import App, AsyncClient, Client, handler
from mainspring.errors import TooLarge
from mainspring.sdk.environment import Address
from mainspring.sdk.worker.options import WorkerOptions
from mainspring.sdk.worker.worker import Worker
from support.waiting import eventually
from support.workers import KEY, LocalNode, open_local_node

MOST = 2000
app = App(url="http://127.0.0.1:1", api_key="key")


@app.task
async def letters(count: int) -> str:
    return "x" * count


@pytest.fixture
async def local_node(database_url: str) -> AsyncIterator[LocalNode]:
    async with open_local_node(database_url, max_payload=MOST, max_body=20_000) as opened:
        yield opened


@asynccontextmanager
async def working(local_node: LocalNode) -> AsyncIterator[Worker]:
    worker = Worker(app, WorkerOptions(name="w"), address=Address(local_node.server.url, KEY))
    work = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(work, 20)


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (MOST, f"/outcomes/0/result: has {MOST + 2} bytes; the most is {MOST}"),
        (50_000, "20000"),
        (20_000_000, "20000"),
    ],
)
async def test_a_result_that_is_too_large(
    local_node: LocalNode, caplog: pytest.LogCaptureFixture, count: int, message: str
) -> None:
    async with working(local_node):
        fits = await local_node.create("letters", payload={"count": MOST - 2})
        large = await local_node.create("letters", payload={"count": count})
        assert len((await local_node.until(fits, "completed"))["result"]) == MOST - 2
        failed = await local_node.until(large, "failed")
    assert failed["error"]["code"] == "bad-report"
    assert message in failed["error"]["message"]
    assert len(await local_node.executions(large)) == 1, "no other execution would end otherwise"
    (warning,) = [line.message for line in caplog.records if line.name == "mainspring.worker"]
    assert large in warning
    assert message in warning


async def test_a_request_that_is_refused_before_all_of_it_is_sent(local_node: LocalNode) -> None:
    payload = "x" * 20_000_000

    def blocking() -> None:
        with Client(local_node.server.url, KEY, timeout=5) as client:
            client.tasks.create(handler("x"), payload=payload)

    for _ in range(3):
        with pytest.raises(TooLarge, match="20000"):
            await asyncio.to_thread(blocking)
        async with AsyncClient(local_node.server.url, KEY, timeout=5) as client:
            with pytest.raises(TooLarge, match="20000"):
                await client.tasks.create(handler("x"), payload=payload)


async def test_a_report_that_is_refused_keeps_its_form(local_node: LocalNode) -> None:
    task = await local_node.create()
    worker = local_node.worker()
    (leased,) = await worker.lease()
    outcome = {"id": task, "fence": leased["fence"], "status": "succeeded", "result": "x" * MOST}
    answer = await local_node.client.post("/v1/leases/report", {"outcomes": [outcome]})
    document = answer.json()
    assert (answer.status, document["detail"]) == (413, "some results cannot be kept")
    detail = f"has {MOST + 2} bytes; the most is {MOST}"
    assert document["errors"] == [{"pointer": "/outcomes/0/result", "detail": detail}]


async def test_a_stopping_node_refuses_polls_with_a_reason(
    local_node: LocalNode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mainspring.worker")
    lease_service = local_node.server.node._lease_service
    assert lease_service is not None

    async def waits() -> bool:
        return len(lease_service._waiting) == 2

    def logged() -> list[tuple[int, str]]:
        lines = [line for line in caplog.records if line.name == "mainspring.worker"]
        return [(line.levelno, line.message) for line in lines]

    async with working(local_node):
        await eventually(waits, within=10, what="the worker's polls wait")
        lease_service.close()
        request = {"worker": "other", "incarnation": "1", "handlers": ["x"], "max": 1, "wait": 0}
        for _ in range(3):
            answer = await local_node.client.post("/v1/leases", request)
            document = answer.json()
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert document["type"] == "urn:mainspring:problem:not-ready"
            assert document["detail"] == "this node is stopping; ask another one"

        async def asked_in_vain() -> bool:
            labels = {"route": "/v1/leases", "method": "POST", "status": "503"}
            value = local_node.server.metrics.registry.get_sample_value
            return (value("mainspring_http_requests_total", labels) or 0) >= 3 + 6

        await eventually(asked_in_vain, within=10, what="several polls were refused")
    told = (
        f"{local_node.server.url}: the server answered 503: this node is stopping; ask another one"
    )
    assert logged() == [(logging.INFO, told)]
