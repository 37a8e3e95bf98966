"""What benches share: a server of their own, processor times, percentiles."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp

from mainspring.postgres.database import Database, DatabaseOptions
from mainspring.postgres.embedded import EmbeddedServer
from mainspring.postgres.migrate import migrate
from mainspring.store.keys import KeyStore, NewKey

API_KEY = "ms_bench_key"
_TICKS = os.sysconf("SC_CLK_TCK")

# As in production on a machine of this size; durability stays on.
_SETTINGS = {"shared_buffers": "2GB", "max_wal_size": "8GB"}


@dataclass(frozen=True, slots=True)
class Bench:
    """A running PostgreSQL and node, and a client for it."""

    url: str
    database_url: str
    tenant_id: int
    client: aiohttp.ClientSession
    node_pid: int
    postgres_pid: int


@asynccontextmanager
async def database() -> AsyncIterator[tuple[str, int]]:
    """A fresh PostgreSQL with fsync and synchronous_commit on: its URL and process id."""
    with tempfile.TemporaryDirectory(prefix="mainspring-bench-") as directory:
        server = EmbeddedServer(Path(directory) / "data", settings=_SETTINGS)
        try:
            url = await asyncio.to_thread(server.start)
            await migrate(url)
            assert server.pid is not None
            yield url, server.pid
        finally:
            await asyncio.to_thread(server.stop)


@asynccontextmanager
async def bench(**settings: object) -> AsyncIterator[Bench]:
    """A node process on a database of its own; settings as in MAINSPRING_…"""
    async with database() as (database_url, postgres_pid):
        tenant_id = await _make_key(database_url)
        port = free_port()
        node = _start_node(database_url, port, settings)
        try:
            headers = {"Authorization": f"Bearer {API_KEY}"}
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers) as client:
                await _ready(client)
                url = f"http://127.0.0.1:{port}"
                yield Bench(url, database_url, tenant_id, client, node.pid, postgres_pid)
        finally:
            node.send_signal(signal.SIGTERM)
            await asyncio.to_thread(node.wait)


@asynccontextmanager
async def another_node(server: Bench, **settings: object) -> AsyncIterator[Bench]:
    """A second node on the same database, as a bigger machine would run."""
    port = free_port()
    node = _start_node(server.database_url, port, settings)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
            await _ready(client)
            url = f"http://127.0.0.1:{port}"
            yield replace(server, url=url, client=client, node_pid=node.pid)
    finally:
        node.send_signal(signal.SIGTERM)
        await asyncio.to_thread(node.wait)


@asynccontextmanager
async def bare_server(answer: bytes) -> AsyncIterator[tuple[int, int]]:
    """The HTTP server alone, which reads a body and says this: its port and process id. What it
    takes is what no feature of ours can take away."""
    port = free_port()
    process = _start_bare(port, answer)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
            await _ready(client, 201)
        yield port, process.pid
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)


def cpu_seconds(*pids: int) -> float:
    """Processor time that processes and their children have used so far."""
    return sum(_own_seconds(pid) for root in pids for pid in _family(root))


def memory_mb(pid: int) -> float:
    """Resident memory of one process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


async def _make_key(database_url: str) -> int:
    store = Database(DatabaseOptions(database_url))
    await store.open()
    keys = KeyStore(store)
    tenant_id = await keys.ensure_tenant("bench")
    scopes = frozenset({"read", "write", "work", "admin"})
    await keys.add(NewKey("bench", API_KEY, tenant_id, scopes, operator=True))
    await store.close()
    return tenant_id


def _start_node(
    database_url: str, port: int, settings: dict[str, object]
) -> "subprocess.Popen[bytes]":
    environment = {
        **os.environ,
        "DATABASE_URL": database_url,
        "MAINSPRING_PORT": str(port),
        "MAINSPRING_LOG_LEVEL": "warning",
        **{f"MAINSPRING_{name.upper()}": str(value) for name, value in settings.items()},
    }
    return subprocess.Popen([sys.executable, "-m", "mainspring", "server"], env=environment)


def _start_bare(port: int, answer: bytes) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "benchmarks.bare", str(port)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert process.stdin is not None
    with process.stdin as its_input:
        its_input.write(answer)
    return process


async def _ready(client: aiohttp.ClientSession, status: int = 200) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                async with client.get("/readyz") as answer:
                    if answer.status == status:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _family(root: int) -> list[int]:
    try:
        children = [
            int(pid)
            for task in Path(f"/proc/{root}/task").iterdir()
            for pid in (task / "children").read_text().split()
        ]
    except FileNotFoundError:  # it ended between being listed and being asked
        return []
    return [root, *(pid for child in children for pid in _family(child))]


def _own_seconds(pid: int) -> float:
    # Includes children that have ended and were waited for: backends come and go.
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except FileNotFoundError:  # it ended between being listed and being asked
        return 0.0
    return sum(int(ticks) for ticks in fields[11:15]) / _TICKS
