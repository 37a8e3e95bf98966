"""Webhooks to real receivers, some of them hostile: the http executor by itself."""

import asyncio
import gzip
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from standardwebhooks import Webhook

from mainspring.clock import monotonic
from mainspring.domain.execution import Outcome, Report
from mainspring.domain.task import SealedHeaders
from mainspring.domain.webhook import SigningKey, WebhookProfile
from mainspring.execution.egress_guard import EgressRules
from mainspring.execution.http import HttpSettings
from mainspring.execution.send_queues import Caps
from mainspring.execution.signing import format_secret
from support.receivers import Received, Script, answer, answering, receiver
from support.webhooks import SETTINGS, Deliveries, Profiles, deliveries, execution, with_sender

pytestmark = pytest.mark.slow

OK = answering(answer(200, content_type="application/json"))


@pytest.fixture
async def sent() -> AsyncIterator[Deliveries]:
    async with deliveries() as made:
        yield made


def code_of(report: Report) -> str | None:
    return report.error.code if report.error else None


async def never(_request: Received, _writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


# --- plain deliveries ------------------------------------------------------------------------


async def test_a_webhook_is_delivered_signed_and_answered() -> None:
    profiles = Profiles()
    keys = (SigningKey("hmac", b"n" * 32), SigningKey("hmac", b"o" * 32))
    profiles.by_tenant[1] = WebhookProfile(keys)
    async with deliveries(SETTINGS, profiles) as sent, receiver(OK) as there:
        report = await sent.deliver(there.url("/a/../b?x=1"), headers={"X-A": "1", "X-Empty": ""})
        assert report.outcome is Outcome.SUCCEEDED
        assert (report.status_code, report.response) == (200, b'{"ok":true}')
        assert report.result is not None
        result = msgspec.json.decode(report.result)
        assert (result["status_code"], result["body"]) == (200, {"ok": True})
        request = there.requests[0]
        assert (request.method, request.path, request.body) == ("POST", "/a/../b?x=1", b'{"n":1}')
        for key in keys:
            assert Webhook(format_secret(key)).verify(request.body, request.headers) == {"n": 1}
        task_id = str(report.execution.id)
        wanted = {
            "webhook-id": task_id,
            "x-idempotency-key": task_id,
            "x-mainspring-attempt": "2",
            "x-mainspring-fence": "3",
            "user-agent": "Mainspring/test",
            "content-type": "application/json",
            "x-a": "1",
            "x-empty": "",
        }
        assert wanted.items() <= request.headers.items()
        assert request.headers["traceparent"].startswith(f"00-{report.execution.id.hex}-")
        assert request.headers["x-mainspring-scheduled-at"].endswith("Z")
        assert "expect" not in request.headers


async def test_connections_are_used_again(sent: Deliveries) -> None:
    async with receiver(OK) as there:
        for _ in range(5):
            assert (await sent.deliver(there.url())).outcome is Outcome.SUCCEEDED
        assert there.connections == 1


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "POST"])
async def test_every_method_is_sent(sent: Deliveries, method: str) -> None:
    bodiless = answering(answer(204, b"") if method != "HEAD" else answer(200, b""))
    async with receiver(bodiless) as there:
        for _ in range(2):
            report = await sent.deliver(there.url(), method=method)
            assert report.outcome is Outcome.SUCCEEDED, report
        wanted = b"" if method in ("GET", "HEAD") else b'{"n":1}'
        assert [(r.method, r.body) for r in there.requests] == [(method, wanted)] * 2


async def test_a_thousand_at_once(sent: Deliveries) -> None:
    async with receiver(OK) as there:
        many = [execution(there.url(), tenant=n % 3) for n in range(1000)]
        sent.executor.start(many)
        reports = await sent.until_reported(*many)
        assert {r.outcome for r in reports} == {Outcome.SUCCEEDED}
        assert there.connections <= 300


# --- deadlines and cancelling ----------------------------------------------------------------


def dripping(start: bytes) -> Script:
    """A script that begins an answer, and goes on byte by byte."""

    async def script(_request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.05)

    return script


drip = dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
drip_headers = dripping(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("script", [never, drip, drip_headers], ids=["never", "body", "headers"])
async def test_an_endless_response_ends_at_the_deadline(sent: Deliveries, script: object) -> None:
    async with receiver(script) as slow, receiver(OK) as quick:  # type: ignore[arg-type]
        stuck = execution(slow.url(), timeout=0.7)
        began = monotonic()
        sent.executor.start([stuck])
        await slow.arrived.wait()
        assert (await sent.deliver(quick.url())).outcome is Outcome.SUCCEEDED
        assert stuck.id not in sent.reports  # others are unaffected
        (report,) = await sent.until_reported(stuck)
        assert (report.outcome, code_of(report)) == (Outcome.TIMED_OUT, "timeout")
        assert 0.6 < monotonic() - began < 2


async def test_a_running_execution_is_cancelled(sent: Deliveries) -> None:
    async with receiver(never) as slow:
        stuck = execution(slow.url())
        sent.executor.start([stuck])
        await slow.arrived.wait()
        sent.executor.cancel(stuck.id, stuck.fence + 1)
        sent.executor.cancel(stuck.id, stuck.fence)
        sent.executor.cancel(stuck.id, stuck.fence)
        (report,) = await sent.until_reported(stuck)
        assert report.outcome is Outcome.CANCELLED


async def test_a_full_host_queues_and_a_queued_call_can_be_cancelled() -> None:
    settings = HttpSettings(Caps(100, 10, 2), SETTINGS.sender, SETTINGS.egress, "Mainspring/test")
    async with deliveries(settings) as sent, receiver(never) as slow, receiver(OK) as quick:
        stuck = [execution(slow.url()) for _ in range(5)]
        sent.executor.start(stuck)
        assert (await sent.deliver(quick.url())).outcome is Outcome.SUCCEEDED
        assert (await sent.deliver(quick.url(), tenant=2)).outcome is Outcome.SUCCEEDED
        sent.executor.cancel(stuck[4].id, stuck[4].fence)
        (report,) = await sent.until_reported(stuck[4])
        assert report.outcome is Outcome.CANCELLED
        assert len(slow.requests) == 2


async def test_stopping_releases_what_is_not_done() -> None:
    async with receiver(never) as slow:
        async with deliveries() as sent:
            stuck = [execution(slow.url()) for _ in range(3)]
            sent.executor.start(stuck)
            await slow.arrived.wait()
        assert {sent.reports[each.id].outcome for each in stuck} == {Outcome.RELEASED}


# --- answers that are not as they should be --------------------------------------------------


async def test_a_redirect_is_a_failure_and_not_followed(sent: Deliveries) -> None:
    async with receiver(OK) as secret_place:
        redirect = answering(answer(302, b"", location=secret_place.url()))
        async with receiver(redirect) as there:
            report = await sent.deliver(there.url())
        assert (report.outcome, code_of(report)) == (Outcome.FAILED, "http-302")
        assert not report.retryable
        assert secret_place.requests == []


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [("7", 7, 7), ("99999999999999999999", 30 * 86400, 30 * 86400), ("nonsense", None, None)],
)
async def test_retry_after_reaches_the_report(
    sent: Deliveries, value: str, low: float | None, high: float | None
) -> None:
    async with receiver(answering(answer(503, b"", retry_after=value))) as there:
        report = await sent.deliver(there.url())
    assert (report.outcome, report.retryable) == (Outcome.FAILED, True)
    assert report.retry_after == low == high


async def test_nothing_listens(sent: Deliveries) -> None:
    async with receiver(OK) as there:
        url = there.url()
    report = await sent.deliver(url)
    assert (report.outcome, code_of(report), report.retryable) == (
        Outcome.FAILED,
        "connection",
        True,
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x01\x02\x03",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
        b"HTTP/9.9 999 What\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_broken_answers_are_failures(sent: Deliveries, data: bytes) -> None:
    async def script(_request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        writer.close()

    async with receiver(script) as there:
        report = await sent.deliver(there.url(), timeout=3)
    assert report.outcome is Outcome.FAILED
    assert report.retryable


async def test_a_big_answer_is_kept_up_to_the_cap() -> None:
    async with deliveries(with_sender(max_response=1000)) as sent:
        async with receiver(answering(answer(200, b"x" * 5000))) as there:
            report = await sent.deliver(there.url())
        assert report.outcome is Outcome.SUCCEEDED
        assert report.response == b"x" * 1000
        assert report.result is not None
        assert msgspec.json.decode(report.result)["truncated"] is True


async def endless(_request: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        await writer.drain()


async def million_headers(_request: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    for _ in range(1000):
        writer.write(b"X-Header: yes\r\n" * 1000)
        await writer.drain()


async def one_huge_header(_request: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX-Header: ")
    for _ in range(1000):
        writer.write(b"x" * 65536)
        await writer.drain()


async def endless_interim(_request: Received, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 100)
        await writer.drain()


async def test_an_endless_body_is_cut_and_its_status_counts(sent: Deliveries) -> None:
    before = resident()
    async with receiver(endless) as there:
        many = [execution(there.url()) for _ in range(20)]
        sent.executor.start(many)
        reports = await sent.until_reported(*many)
    assert {r.outcome for r in reports} == {Outcome.SUCCEEDED}
    assert {len(r.response or b"") for r in reports} == {65536}
    assert resident() - before < 100 * 2**20


@pytest.mark.parametrize("script", [million_headers, one_huge_header, endless_interim])
async def test_endless_headers_are_cut(sent: Deliveries, script: object) -> None:
    before = resident()
    async with receiver(script) as there:  # type: ignore[arg-type]
        many = [execution(there.url()) for _ in range(20)]
        sent.executor.start(many)
        reports = await sent.until_reported(*many)
    assert {r.outcome for r in reports} == {Outcome.FAILED}
    assert resident() - before < 100 * 2**20


async def test_a_gzip_bomb_stays_packed(sent: Deliveries) -> None:
    bomb = gzip.compress(bytes(50 * 2**20))
    before = resident()
    packed = answering(answer(200, bomb, content_encoding="gzip", content_type="text/plain"))
    async with receiver(packed) as there:
        report = await sent.deliver(there.url(), headers={"Accept-Encoding": "gzip"})
    assert report.outcome is Outcome.SUCCEEDED
    assert report.response == bomb[:65536]
    assert resident() - before < 40 * 2**20


# --- what cannot be sent ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["http://a:99999/", "http://[::1/x", "http://a:b/", "http://\u2100.com/"]
)
async def test_what_is_no_url_fails_alone(sent: Deliveries, url: str) -> None:
    async with receiver(OK) as there:
        batch = [execution(u) for u in (there.url(), url, there.url())]
        sent.executor.start(batch)
        one, bad, two = await sent.until_reported(*batch)
        assert (one.outcome, two.outcome) == (Outcome.SUCCEEDED, Outcome.SUCCEEDED)
        assert (bad.outcome, code_of(bad), bad.retryable) == (Outcome.FAILED, "bad-url", False)


async def test_what_nobody_thought_of_fails_alone_and_frees_its_place() -> None:
    settings = HttpSettings(Caps(1, 1, 1), SETTINGS.sender, SETTINGS.egress, "Mainspring/test")
    async with deliveries(settings) as sent, receiver(OK) as there:
        strange = {"X-A": "\u20ac"}  # no header can hold it
        batch = [execution(there.url(), headers=headers) for headers in (None, strange, None)]
        sent.executor.start(batch)
        one, bad, two = await sent.until_reported(*batch)
        assert (one.outcome, two.outcome) == (Outcome.SUCCEEDED, Outcome.SUCCEEDED)
        assert (bad.outcome, code_of(bad), bad.retryable) == (Outcome.FAILED, "not-started", True)


# --- what may not be called ------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/",
        "http://localhost:{port}/",
        "http://[::ffff:127.0.0.1]:{port}/",
        "http://2130706433:{port}/",
        "http://0x7f.1:{port}/",
        "http://0177.0.0.1:{port}/",
        "http://[::ffff:7f00:1]:{port}/",
        "http://0.0.0.0:{port}/",
        "http://[::]:{port}/",
    ],
)
async def test_without_leave_nothing_reaches_loopback(url: str) -> None:
    settings = HttpSettings(SETTINGS.caps, SETTINGS.sender, EgressRules(), "Mainspring/test")
    async with deliveries(settings) as sent, receiver(OK) as there:
        report = await sent.deliver(url.format(port=there.port))
        assert (report.outcome, code_of(report)) == (Outcome.FAILED, "egress-blocked")
        assert not report.retryable
        assert there.connections == 0


async def test_a_reused_connection_obeys_each_tenants_egress_rules() -> None:
    profiles = Profiles()
    profiles.by_tenant[2] = WebhookProfile(deny=("127.0.0.0/8",))
    async with deliveries(SETTINGS, profiles) as sent, receiver(OK) as there:
        assert (await sent.deliver(there.url(), tenant=1)).outcome is Outcome.SUCCEEDED
        report = await sent.deliver(there.url(), tenant=2)
        assert code_of(report) == "egress-blocked"
        assert len(there.requests) == 1


async def test_proxies_of_the_environment_are_ignored(
    sent: Deliveries, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiver(OK) as proxy, receiver(OK) as there:
        for name in ("http_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url(""))
        assert (await sent.deliver(there.url())).outcome is Outcome.SUCCEEDED
        assert (proxy.connections, there.connections) == (0, 1)


# --- secrets and later -----------------------------------------------------------------------


async def test_a_secret_that_is_echoed_is_masked(sent: Deliveries) -> None:
    async def echo(request: Received, writer: asyncio.StreamWriter) -> None:
        value = request.headers["x-secret"]
        writer.write(answer(200, f"you sent {value}".encode(), etag=value))

    async with receiver(echo) as there:
        secret = SealedHeaders(["X-Secret"], "CANARY-0815")
        report = await sent.deliver(there.url(), secret=secret)
        assert there.requests[0].headers["x-secret"] == "CANARY-0815"
    assert report.response == b"you sent ***"
    kept = report._replace(execution=execution("http://x/"))
    assert "CANARY" not in repr(kept)


async def test_accepted_work_times_out_when_nobody_completes_it(sent: Deliveries) -> None:
    later = answering(answer(202, b"", mainspring_complete="later"))
    async with receiver(later) as there:
        accepted = execution(there.url(), timeout=0.6)
        gone = execution(there.url(), timeout=60)
        sent.executor.start([accepted, gone])
        (report,) = await sent.until_reported(accepted)
        assert (report.outcome, report.status_code) == (Outcome.TIMED_OUT, 202)
        assert gone.id not in sent.reports
        sent.executor.cancel(gone.id, gone.fence)
        (report,) = await sent.until_reported(gone)
        assert report.outcome is Outcome.CANCELLED


async def test_what_came_of_webhooks_is_counted() -> None:
    async with deliveries() as sent:
        scripts = (answer(200), answer(302), answer(404), answer(503))
        for script in scripts:
            async with receiver(answering(script)) as there:
                await sent.deliver(there.url())
        await sent.deliver(there.url())  # nobody listens there any more
        await sent.deliver("http://10.0.0.1/")
        await sent.deliver("http://2130706433/")
        later = answering(answer(202, b"", mainspring_complete="later"))
        async with receiver(later) as accepting, receiver(never) as slow:
            stuck = execution(slow.url(), timeout=0.3)
            gone = execution(slow.url())
            accepted = execution(accepting.url())
            sent.executor.start([stuck, gone, accepted])
            await sent.until_reported(stuck)
            value = sent.metrics.registry.get_sample_value
            assert value("mainspring_webhooks_in_flight") == 1
            assert value("mainspring_webhooks_waiting") == 0
            sent.executor.cancel(gone.id, gone.fence)
            await sent.until_reported(gone)
        counted = {
            sample.labels["result"]: sample.value
            for family in sent.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "mainspring_webhooks_total"
        }
        assert counted == {
            **dict.fromkeys(("2xx", "3xx", "4xx", "5xx", "connection", "later", "timeout"), 1.0),
            "refused": 2.0,
            "cancelled": 1.0,
        }
        assert value("mainspring_webhook_seconds_count") == 9.0
        assert value("mainspring_webhooks_in_flight") == 0


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
