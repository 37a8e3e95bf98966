"""Webhooks over TLS: whom a sender trusts, who it is, and which HTTP it offers."""

import asyncio
import ssl
from pathlib import Path

import pytest

from mainspring.domain.execution import Outcome, Report
from mainspring.domain.webhook import TlsIdentity, WebhookProfile
from support.identities import Authority, Identity
from support.receivers import answer, answering, receiver
from support.webhooks import SETTINGS, Profiles, deliveries, with_sender

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


async def test_a_stranger_is_not_trusted_and_a_tenants_authority_is(
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
    context = server_context(authority.identity("receiver"), tmp_path)
    context.set_alpn_protocols(["h2", "http/1.1"])
    opening: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opening.set_result(await reader.readexactly(24))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        await deliver(server.sockets[0].getsockname()[1], TlsIdentity(ca=authority.pem))
        assert await opening == b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
