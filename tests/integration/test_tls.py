"""TLS: towards those who call us, and towards the database."""

import asyncio
import json
import os
import socket
import ssl
import subprocess
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import aiohttp
import pytest

from mainspring.api.http.connection import ConnectionLimits, HttpConfig
from mainspring.api.http.server import HttpServer
from mainspring.config import Config, load
from mainspring.errors import ConfigError, StoreUnavailable
from mainspring.observe.metrics import Metrics
from mainspring.postgres.database import Database
from mainspring.tls import server_context
from mainspring.wiring import commands
from mainspring.wiring.settings import database_options
from support.certificates import Authority, Certificate
from support.cluster import Cluster

HERE = ("DNS:localhost", "IP:127.0.0.1")
LIMITS = ConnectionLimits(connections=10, headers=100, head=32768, timeout=10)
SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"


@pytest.fixture
def authority(openssl: Path, tmp_path: Path) -> Authority:
    return Authority(openssl, tmp_path, "trusted")


@pytest.fixture
def stranger(openssl: Path, tmp_path: Path) -> Authority:
    return Authority(openssl, tmp_path, "strange")


# --- those who call us -------------------------------------------------------------------------


async def answer(_scope: Any, _receive: Any, send: Any) -> None:
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def https_server(config: Config) -> AsyncIterator[int]:
    """The port of a server with the TLS of these settings."""
    listening = socket.create_server(("127.0.0.1", 0))
    tls = server_context(config)
    assert tls is not None
    http = HttpConfig(answer, LIMITS, Metrics(), keep_alive=5, tls=tls)
    server = HttpServer(http)
    await server.open(listening)
    try:
        yield listening.getsockname()[1]
    finally:
        await server.close()


async def call(port: int, trusted: Path, own: Certificate | None = None) -> int:
    context = ssl.create_default_context(cafile=trusted)
    if own is not None:
        context.load_cert_chain(own.chain, own.key)
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(connector=connector) as session:  # noqa: SIM117
        async with session.get(f"https://localhost:{port}/") as response:
            return response.status


def settings(certificate: Certificate, **others: Any) -> Config:
    return Config(tls_certificate=str(certificate.chain), tls_key=str(certificate.key), **others)


async def test_a_server_with_a_certificate(authority: Authority, stranger: Authority) -> None:
    async with https_server(settings(authority.issue("server", *HERE))) as port:
        assert await call(port, authority.file) == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await call(port, stranger.file)
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"http://localhost:{port}/")


async def test_old_protocols_are_refused(authority: Authority) -> None:
    context = server_context(settings(authority.issue("server", *HERE)))
    assert context is not None
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


async def test_clients_with_certificates_only(authority: Authority, stranger: Authority) -> None:
    config = settings(
        authority.issue("server", *HERE),
        tls_client_ca=str(authority.file),
        tls_client_required=True,
    )
    async with https_server(config) as port:
        assert await call(port, authority.file, authority.issue("client")) == 200
        with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
            await call(port, authority.file)
        with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
            await call(port, authority.file, stranger.issue("client"))


async def test_certificates_of_clients_may_be_a_choice(
    authority: Authority, stranger: Authority
) -> None:
    """Who shows none is served; who shows one must show a good one."""
    config = settings(authority.issue("server", *HERE), tls_client_ca=str(authority.file))
    async with https_server(config) as port:
        assert await call(port, authority.file) == 200
        assert await call(port, authority.file, authority.issue("client")) == 200
        with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
            await call(port, authority.file, stranger.issue("client"))


def test_settings_that_cannot_work_are_named(authority: Authority, tmp_path: Path) -> None:
    for wrong in (
        {"MAINSPRING_TLS_KEY": "k"},
        {"MAINSPRING_TLS_CLIENT_CA": "c"},
        {"MAINSPRING_TLS_CERTIFICATE": "c", "MAINSPRING_TLS_CLIENT_REQUIRED": "true"},
        {"MAINSPRING_KEY_ENVIRONMENT": "prod"},
    ):
        with pytest.raises(ConfigError):
            load(wrong)
    with pytest.raises(ConfigError, match="tls_certificate"):
        server_context(Config(tls_certificate=str(tmp_path / "missing.pem")))
    server, other = authority.issue("server", *HERE), authority.issue("other", *HERE)
    with pytest.raises(ConfigError, match="tls_certificate"):
        server_context(Config(tls_certificate=str(server.chain), tls_key=str(other.key)))
    with pytest.raises(ConfigError, match="database_ca"):
        database_options(Config(database_url="x", database_ca=str(tmp_path / "missing")))


# --- a whole installation, from its first key on ---------------------------------------------


def command(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("MAINSPRING_")}
    return subprocess.run(
        [sys.executable, "-m", "mainspring", *words],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def succeed(environment: dict[str, str], *words: str) -> str:
    done = command(environment, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_an_installation_begins_with_an_operators_key(
    database_url: str, authority: Authority, tmp_path: Path
) -> None:
    """From an empty database to a tenant's keys, over https, by commands alone."""
    certificate = authority.issue("server", *HERE)
    tls = {"tls_certificate": certificate.chain, "tls_key": certificate.key}
    async with Cluster(database_url, tmp_path) as cluster:
        node = cluster.spawn(**tls)
        await node.listening()
        assert node.url.startswith("https://127.0.0.1:")
        await asyncio.to_thread(_use_commands, database_url, node.url, authority.file)


def _use_commands(database_url: str, url: str, ca: Path) -> None:
    operator = succeed({"DATABASE_URL": database_url}, "operator-key", "create").strip()
    assert operator.startswith("ms_live_")
    reach = {"MAINSPRING_URL": url, "MAINSPRING_API_CA": str(ca)}
    as_operator = {**reach, "MAINSPRING_API_KEY": operator}
    tenant = json.loads(succeed(as_operator, "tenants", "create", "acme", "-o", "json"))
    assert "acme" in succeed(as_operator, "tenants", "list")

    as_admin = {**reach, "MAINSPRING_API_KEY": tenant["api_key"]}
    made = json.loads(
        succeed(as_admin, "keys", "create", "--scope", "read", "--name", "[red]ci", "-o", "json")
    )
    assert made["scopes"] == ["read"]
    assert "[red]ci" in succeed(as_admin, "keys", "list")
    assert succeed(as_admin, "keys", "revoke", made["id"]) == ""
    listed = json.loads(succeed(as_admin, "keys", "list", "-o", "json"))
    assert listed[0]["revoked_at"] is not None

    refused = command(as_admin, "tenants", "list")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "operator" in refused.stderr
    distrusted = command({**as_admin, "MAINSPRING_API_CA": ""}, "keys", "list")
    assert distrusted.returncode == 1
    assert "is not trusted: unable to get local issuer certificate (ca=" in distrusted.stderr
    for done in (refused, distrusted):
        assert "Traceback" not in done.stderr
        assert tenant["api_key"] not in done.stderr


# --- the database ------------------------------------------------------------------------------


@asynccontextmanager
async def tls_in_front_of(database_url: str, certificate: Certificate) -> AsyncIterator[str]:
    """The same database by TCP and TLS: the embedded server knows neither, so a proxy that speaks
    the first words of PostgreSQL's protocol stands before its socket."""
    parts = urlsplit(database_url)
    where = parse_qs(parts.query)
    path = f"{unquote(where['host'][0])}/.s.PGSQL.{where['port'][0]}"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.chain, certificate.key)
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        serving.add(asyncio.current_task())  # type: ignore[arg-type]
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            if await reader.readexactly(8) == SSL_REQUEST:
                writer.write(b"S")
                await writer.drain()
                await writer.start_tls(context)
                behind = await asyncio.open_unix_connection(path)
                await asyncio.gather(pump(reader, behind[1]), pump(behind[0], writer))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    name = f"{parts.username}:{parts.password}"
    try:
        yield f"postgresql://{name}@{{host}}:{port}{parts.path}"
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


async def pump(reader: StreamReader, writer: StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


async def ask(url: str, ca: Path | None) -> int:
    config = Config(database_url=url, database_ca=str(ca) if ca else None)
    database = Database(database_options(config))
    try:
        await database.open()
        row = await database.fetch_row("SELECT 1 AS one")
        assert row is not None
        return int(row["one"])
    finally:
        await database.close()


async def test_the_database_must_prove_its_identity(
    database_url: str, authority: Authority, stranger: Authority
) -> None:
    certificate = authority.issue("database", "DNS:localhost")
    async with tls_in_front_of(database_url, certificate) as url:
        assert await ask(url.format(host="localhost"), authority.file) == 1
        with pytest.raises(StoreUnavailable, match="certificate verify failed"):
            await ask(url.format(host="localhost"), stranger.file)
        with pytest.raises(StoreUnavailable, match="not valid for"):
            await ask(url.format(host="127.0.0.1"), authority.file)


async def test_migrations_go_the_same_way(
    database_url: str, authority: Authority, stranger: Authority
) -> None:
    certificate = authority.issue("database", *HERE)
    async with tls_in_front_of(database_url, certificate) as url:
        here = url.format(host="127.0.0.1")
        config = Config(database_url=here, database_ca=str(authority.file))
        assert await commands.migrate(config) == []
        findings = await commands.examine(config)
        assert findings
        with pytest.raises(StoreUnavailable):
            await commands.migrate(Config(database_url=here, database_ca=str(stranger.file)))


async def test_a_server_without_tls_is_refused(database_url: str, authority: Authority) -> None:
    """Nobody in between can talk us out of TLS."""

    async def plain(reader: StreamReader, writer: StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(b"N")
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(StoreUnavailable):
            await ask(f"postgresql://x:y@127.0.0.1:{port}/z", authority.file)
