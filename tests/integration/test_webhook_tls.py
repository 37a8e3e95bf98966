"""Webhooks over TLS: whom a sender trusts, who it is, and which HTTP it offers."""

import ssl
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from mainspring.domain.execution import Outcome, Report
from mainspring.domain.webhook import SigningKey, TlsIdentity, WebhookProfile
from mainspring.execution.signing import format_secret
from support.http2 import http2_receiver
from support.identities import Authority, Identity
from support.receivers import answer, answering, receiver
from support.webhooks import SETTINGS, Profiles, deliveries, execution, with_sender

OK = answering(answer(200))


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def server_context(identity: Identity, directory: Path) -> ssl.SSLContext:
    certificate, key = directory / "server.pem", directory / "server.key"
    certificate.write_bytes(identity.certificate)
    key.write_bytes(identity.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


async def deliver(port: int, tls: TlsIdentity | None) -> Report:
    profiles = Profiles()
    profiles.by_tenant[1] = WebhookProfile(tls=tls)
    async with deliveries(SETTINGS, profiles) as sent:
        return await sent.deliver(f"https://127.0.0.1:{port}/", timeout=5)


async def test_only_the_tenants_own_authority_is_trusted(
    authority: Authority, tmp_path: Path
) -> None:
    context = server_context(authority.identity("receiver"), tmp_path)
    async with receiver(OK, tls=context) as there:
        refused = await deliver(there.port, None)
        assert (refused.outcome, refused.retryable) == (Outcome.FAILED, True)
        assert refused.error is not None
        assert refused.error.code == "connection"
        assert there.requests == []
        trusted = await deliver(there.port, TlsIdentity(ca=authority.pem))
        assert trusted.outcome is Outcome.SUCCEEDED
        other = await deliver(there.port, TlsIdentity(ca=Authority().pem))
        assert other.outcome is Outcome.FAILED


async def test_a_certificate_for_another_place_is_refused(
    authority: Authority, tmp_path: Path
) -> None:
    context = server_context(authority.identity("receiver", "127.0.0.9"), tmp_path)
    async with receiver(OK, tls=context) as there:
        report = await deliver(there.port, TlsIdentity(ca=authority.pem))
        assert report.outcome is Outcome.FAILED
        assert there.requests == []


async def test_a_tenant_shows_its_own_certificate(authority: Authority, tmp_path: Path) -> None:
    context = server_context(authority.identity("receiver"), tmp_path)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority.pem.decode())
    client = authority.identity("tenant")
    async with receiver(OK, tls=context) as there:
        nameless = await deliver(there.port, TlsIdentity(ca=authority.pem))
        assert nameless.outcome is Outcome.FAILED
        tls = TlsIdentity(authority.pem, client.certificate, client.key)
        assert (await deliver(there.port, tls)).outcome is Outcome.SUCCEEDED
        # A connection that was opened with a certificate is not lent to somebody without it.
        profiles = Profiles()
        profiles.by_tenant[1] = WebhookProfile(tls=tls)
        profiles.by_tenant[2] = WebhookProfile(tls=TlsIdentity(ca=authority.pem))
        async with deliveries(SETTINGS, profiles) as sent:
            url = f"https://127.0.0.1:{there.port}/"
            assert (await sent.deliver(url, tenant=1)).outcome is Outcome.SUCCEEDED
            assert (await sent.deliver(url, tenant=2, timeout=5)).outcome is Outcome.FAILED


async def test_the_installations_authorities_are_a_file(
    authority: Authority, tmp_path: Path
) -> None:
    context = server_context(authority.identity("receiver"), tmp_path)
    bundle = tmp_path / "authorities.pem"
    bundle.write_bytes(authority.pem)
    async with (
        receiver(OK, tls=context) as there,
        deliveries(with_sender(ca_file=str(bundle))) as sent,
    ):
        report = await sent.deliver(f"https://127.0.0.1:{there.port}/")
        assert report.outcome is Outcome.SUCCEEDED


async def test_http_2_is_spoken_where_it_is_offered(authority: Authority, tmp_path: Path) -> None:
    profiles = Profiles()
    key = SigningKey("hmac", b"n" * 32)
    profiles.by_tenant[1] = WebhookProfile((key,), tls=TlsIdentity(ca=authority.pem))
    context = server_context(authority.identity("receiver"), tmp_path)
    async with http2_receiver(context) as there, deliveries(SETTINGS, profiles) as sent:
        url = f"https://127.0.0.1:{there.port}/hook?x=1"
        payload = b'{"text":"' + b"x" * 200_000 + b'"}'  # more than a window and many frames
        big = execution(url, payload=payload, headers={"X-A": "1"})
        many = [execution(url) for _ in range(50)]
        sent.executor.start([big, *many])
        reports = await sent.until_reported(big, *many)
        assert {r.outcome for r in reports} == {Outcome.SUCCEEDED}
        assert {(r.status_code, r.response) for r in reports} == {(200, b'{"ok":true}')}
        got = {r.headers["webhook-id"]: r for r in there.requests}
        assert len(got) == len(there.requests) == 51
        request = got[str(big.id)]
        assert (request.method, request.path, request.body) == ("POST", "/hook?x=1", payload)
        assert request.headers["x-a"] == "1"
        assert Webhook(format_secret(key)).verify(request.body, request.headers)
        assert "connection" not in request.headers, "of no meaning in HTTP/2, and forbidden"


async def test_answers_over_http_2_are_judged_as_any_other(
    authority: Authority, tmp_path: Path
) -> None:
    profiles = Profiles()
    profiles.by_tenant[1] = WebhookProfile(tls=TlsIdentity(ca=authority.pem))
    context = server_context(authority.identity("receiver"), tmp_path)
    async with (
        http2_receiver(context) as there,
        deliveries(with_sender(max_response=1000), profiles) as sent,
    ):
        place = f"https://127.0.0.1:{there.port}"
        busy = await sent.deliver(f"{place}/status/503")
        assert (busy.outcome, busy.retryable, busy.retry_after) == (Outcome.FAILED, True, 7.0)
        big = await sent.deliver(f"{place}/endless")
        assert big.outcome is Outcome.SUCCEEDED
        assert len(big.response or b"") == 1000
        stuck = execution(f"{place}/never", timeout=0.7)
        gone = execution(f"{place}/never", timeout=60)
        sent.executor.start([stuck, gone])
        (late,) = await sent.until_reported(stuck)
        assert late.outcome is Outcome.TIMED_OUT
        sent.executor.cancel(gone.id, gone.fence)
        (report,) = await sent.until_reported(gone)
        assert report.outcome is Outcome.CANCELLED
        # A stream that was given up does not take the others of its connection with it.
        assert (await sent.deliver(f"{place}/hook")).outcome is Outcome.SUCCEEDED
