"""A server that requires client certificates: clients, workers and commands show theirs."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import mainspring
from mainspring import AsyncClient, Client, Unreachable
from mainspring.errors import ConfigError
from mainspring.sdk.environment import address, child_environment
from support import worker_app as tasks
from support.certificates import Authority, Certificate
from support.cluster import Cluster
from support.process import run
from support.sdk_workers import Workers, workers_at
from support.waiting import eventually

HERE = ("DNS:localhost", "IP:127.0.0.1")
NOOP = mainspring.handler("mainspring.noop")
MISSING = "client_cert= and MAINSPRING_CLIENT_CERT name it"


@pytest.fixture
def authority(openssl: Path, tmp_path: Path) -> Authority:
    return Authority(openssl, tmp_path, "own")


@pytest.fixture
def own(authority: Authority) -> Certificate:
    return authority.issue("client")


@pytest.fixture
async def workers(cluster: Cluster, authority: Authority, tmp_path: Path) -> AsyncIterator[Workers]:
    """Workers of a strict server, which know whom to trust and show nothing."""
    shown = authority.issue("api", *HERE)
    node = cluster.spawn(
        tls_certificate=shown.chain,
        tls_key=shown.key,
        tls_client_ca=authority.file,
        tls_client_required=True,
    )
    await node.listening()
    async with workers_at(cluster, node, tmp_path) as found:
        found.settings = {"MAINSPRING_API_CA": str(authority.file)}
        yield found


async def create_awaiting(url: str, key: str, **options: Any) -> None:
    async with AsyncClient(url, key, **options) as client:
        await client.tasks.create(NOOP)


async def create_blocking(url: str, key: str, **options: Any) -> None:
    def work() -> None:
        with Client(url, key, **options) as client:
            client.tasks.create(NOOP)

    await asyncio.to_thread(work)


SYNC_AND_ASYNC = [create_awaiting, create_blocking]


def shown(certificate: Certificate) -> dict[str, Any]:
    return {"client_cert": str(certificate.chain), "client_key": str(certificate.key)}


def in_one_file(own: Certificate) -> Path:
    both = own.chain.with_suffix(".both")
    both.write_text(own.chain.read_text() + own.key.read_text())
    return both


async def test_clients_show_their_certificate(
    workers: Workers,
    authority: Authority,
    own: Certificate,
    openssl: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: dict[str, Any] = {"ca": str(authority.file), "timeout": 0.5}
    strange = shown(Authority(openssl, tmp_path, "strange").issue("client"))
    for create in SYNC_AND_ASYNC:
        with pytest.raises(Unreachable, match=MISSING):
            await create(workers.url, workers.key, **options)
        with pytest.raises(Unreachable, match=r"trust the client certificate .*strange"):
            await create(workers.url, workers.key, **options, **strange)
        await create(workers.url, workers.key, ca=str(authority.file), **shown(own))
    app = mainspring.App("a", url=workers.url, api_key=workers.key, ca=options["ca"], **shown(own))
    await app.async_client.tasks.create(NOOP)
    await app.async_client.close()

    monkeypatch.setenv("MAINSPRING_CLIENT_CERT", str(in_one_file(own)))
    for create in SYNC_AND_ASYNC:
        await create(workers.url, workers.key, ca=str(authority.file))


async def test_workers_show_their_certificate(workers: Workers, own: Certificate) -> None:
    nameless = workers.spawn()

    async def is_told() -> bool:
        return MISSING in nameless.output()

    await eventually(is_told, within=30, what="the worker says what it lacks")
    assert "Traceback" not in nameless.output()
    nameless.kill()

    workers.settings |= {
        "MAINSPRING_CLIENT_CERT": str(own.chain),
        "MAINSPRING_CLIENT_KEY": str(own.key),
    }
    await workers.start()
    ca = workers.settings["MAINSPRING_API_CA"]
    async with AsyncClient(workers.url, workers.key, ca=ca, **shown(own)) as client:
        for wanted in [tasks.add.prepare(2, 3), tasks.compute.prepare(10)]:
            task = await client.tasks.create(**wanted)
            assert (await client.tasks.wait(task.id, timeout=20)).state == "completed"


async def test_commands_show_their_certificate(workers: Workers, own: Certificate) -> None:
    refused = await asyncio.to_thread(run, "keys", "list", environment=workers.environment)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert MISSING in refused.stderr
    workers.settings["MAINSPRING_CLIENT_CERT"] = str(in_one_file(own))
    listed = await asyncio.to_thread(run, "keys", "list", environment=workers.environment)
    assert listed.returncode == 0, listed.stderr


def test_a_certificate_is_shown_with_a_key_from_the_same_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MAINSPRING_CLIENT_CERT", "a.pem")
    monkeypatch.setenv("MAINSPRING_CLIENT_KEY", "a.key")
    found = address(url="http://x", api_key="key")
    assert (found.client_cert, found.client_key) == ("a.pem", "a.key")
    found = address(url="http://x", api_key="key", client_cert="b.pem")
    assert (found.client_cert, found.client_key) == ("b.pem", None)
    inherited = child_environment(found)
    assert inherited["MAINSPRING_CLIENT_CERT"] == "b.pem"
    assert "MAINSPRING_CLIENT_KEY" not in inherited


def test_unreadable_client_certificates_are_reported(
    own: Certificate, openssl: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="client_key means nothing without client_cert"):
        Client("https://x", "key", client_key=str(own.key))
    with pytest.raises(ConfigError, match=r"client_cert .*absent\.pem"):
        Client("https://x", "key", client_cert=str(tmp_path / "absent.pem"))
    locked = tmp_path / "locked.key"
    subprocess.run(
        [openssl, "pkey", "-in", own.key, "-aes256", "-passout", "pass:x", "-out", locked],
        check=True,
    )
    with pytest.raises(ConfigError, match="client_key is encrypted"):
        Client("https://x", "key", client_cert=str(own.chain), client_key=str(locked))
    environment = {
        "MAINSPRING_URL": "https://127.0.0.1:1",
        "MAINSPRING_API_KEY": "key",
        "MAINSPRING_CLIENT_CERT": str(tmp_path / "absent.pem"),
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "EVIDENCE": str(tmp_path / "evidence"),
    }
    ended = run("worker", "support.worker_app:app", environment=environment)
    assert ended.returncode == 2
    assert "absent.pem" in ended.stderr
