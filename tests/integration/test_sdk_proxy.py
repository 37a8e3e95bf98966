"""Through a proxy: clients and workers reach an API whose name only the proxy can resolve."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import mainspring
from mainspring import AsyncClient, Client, Unreachable
from mainspring.errors import ConfigError
from support import worker_app as tasks
from support.certificates import Authority
from support.cluster import Cluster, Tenant
from support.process import run
from support.proxies import TunnelProxy, tunnel_proxy
from support.sdk_workers import workers_at

NAME = "mainspring.invalid:7070"
NOOP = mainspring.handler("mainspring.noop")


@pytest.fixture
def authority(openssl: Path, tmp_path: Path) -> Authority:
    return Authority(openssl, tmp_path, "own")


@pytest.fixture
async def tenant(cluster: Cluster) -> Tenant:
    return await cluster.tenant()


@pytest.fixture
async def proxy(cluster: Cluster) -> AsyncIterator[TunnelProxy]:
    node = await cluster.start()
    async with tunnel_proxy({NAME: node.url}, login="ann:s3cret") as made:
        yield made


async def create_awaiting(url: str, key: str, **options: Any) -> None:
    async with AsyncClient(url, key, **options) as client:
        task = await client.tasks.create(NOOP)
        await client.tasks.wait(task.id, timeout=20)


async def create_blocking(url: str, key: str, **options: Any) -> None:
    def work() -> None:
        with Client(url, key, **options) as client:
            task = client.tasks.create(NOOP)
            client.tasks.wait(task.id, timeout=20)

    await asyncio.to_thread(work)


SYNC_AND_ASYNC = [create_awaiting, create_blocking]


async def test_only_our_own_variable_names_the_proxy(
    proxy: TunnelProxy, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that was set for other programs does not get to see our keys."""
    for variable in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(variable, proxy.url)
    for create in SYNC_AND_ASYNC:
        with pytest.raises(Unreachable):
            await create(f"http://{NAME}", tenant.key, timeout=0.5)
    assert proxy.asked == []
    monkeypatch.setenv("MAINSPRING_PROXY", proxy.url)
    for create in SYNC_AND_ASYNC:
        await create(f"http://{NAME}", tenant.key)
    assert proxy.asked == [NAME, NAME], "one tunnel each, which all its calls share"


async def test_clients_workers_and_commands_use_tls_through_a_proxy(
    cluster: Cluster, authority: Authority, tmp_path: Path
) -> None:
    shown = authority.issue("api", "DNS:mainspring.invalid")
    node = cluster.spawn(tls_certificate=str(shown.chain), tls_key=str(shown.key))
    await node.listening()
    other = "other.invalid:7070"
    async with (
        tunnel_proxy({NAME: node.url, other: node.url}, login="ann:s3cret") as proxy,
        workers_at(cluster, node, tmp_path) as workers,
    ):
        options: dict[str, Any] = {"proxy": proxy.url, "ca": str(authority.file)}
        for create in SYNC_AND_ASYNC:
            await create(f"https://{NAME}", workers.key, **options)
            with pytest.raises(Unreachable, match="is not trusted: Hostname mismatch"):
                await create(f"https://{other}", workers.key, **options)
        assert proxy.asked.count(other) == len(SYNC_AND_ASYNC), "asking again would not help"
        workers.settings = {
            "MAINSPRING_URL": f"https://{NAME}",
            "MAINSPRING_API_CA": str(authority.file),
            "MAINSPRING_PROXY": proxy.url,
        }
        await workers.start()
        async with AsyncClient(f"https://{NAME}", workers.key, **options) as client:
            for wanted in [tasks.add.prepare(2, 3), tasks.compute.prepare(10)]:
                task = await client.tasks.create(**wanted)
                assert (await client.tasks.wait(task.id, timeout=20)).state == "completed"
        proxy.asked.clear()
        listed = await asyncio.to_thread(run, "keys", "list", environment=workers.environment)
        assert listed.returncode == 0, listed.stderr
        assert NAME in proxy.asked


@pytest.mark.parametrize("create", SYNC_AND_ASYNC)
@pytest.mark.parametrize(
    ("login", "name", "why"), [("ann:wrong", NAME, "407"), ("ann:s3cret", "no.invalid:1", "502")]
)
async def test_a_refusal_does_not_show_the_password(
    create: Callable[..., Any], login: str, name: str, why: str
) -> None:
    async with tunnel_proxy({NAME: "http://127.0.0.1:1"}, login="ann:s3cret") as proxy:
        url = f"http://{login}@127.0.0.1:{proxy.port}"
        with pytest.raises(Unreachable, match=why) as told:
            await create(f"http://{name}", "key", proxy=url, timeout=0.3)
    assert login.partition(":")[2] not in str(told.value)
    assert login not in repr(Client(f"http://{name}", "key", proxy=url).address)


@pytest.mark.parametrize(
    "wrong", ["proxy.example:3128", "https://proxy.example:3128", "http://x", "http://ann:s3cret"]
)
def test_a_bad_proxy_url_is_refused_at_once(wrong: str) -> None:
    with pytest.raises(ConfigError, match="proxy: write it as http://host:port") as told:
        Client("http://x", "key", proxy=wrong)
    assert "s3cret" not in str(told.value)
