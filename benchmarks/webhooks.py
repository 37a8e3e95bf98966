"""Webhooks from create to recorded: how many a second, how many open, and who delays whom.

1. End to end to a fast receiver on this machine, beside the bare sender in the same run.
2. Thousands of open webhooks to receivers that answer after ten seconds: the node's memory.
3. A tenant whose host never answers beside another tenant: what the one costs the other.
"""

import argparse
import asyncio
import resource
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from itertools import count, islice
from pathlib import Path
from uuid import UUID

import aiohttp
import asyncpg
import msgspec

from benchmarks.harness import Bench, bench, cpu_seconds, free_port, memory_mb, percentile
from benchmarks.lifecycle import Feed
from mainspring.execution.egress_guard import EgressRules, parse_networks
from mainspring.execution.sender import ThreadSender
from mainspring.execution.transfers import SenderSettings, TransferReply, TransferRequest
from mainspring.postgres.database import Database, DatabaseOptions
from mainspring.store.keys import KeyStore, NewKey

_JSON = {"Content-Type": "application/json"}
_PAYLOAD = {"order": 4711, "customer": "c-0815", "text": "x" * 150}
_BATCH = 500
_SETTINGS = {
    "egress_allow": "127.0.0.0/8",
    "secrets_key": "00" * 32,
    "http_per_tenant": 10_000,
    "slots": 20_000,
}
_HEADERS = [
    *(b"Content-Type: application/json", b"webhook-id: 01a1e187-bd92-7086-9332-7c2cce412bbd"),
    *(b"webhook-timestamp: 1800000000", b"webhook-signature: v1," + b"x" * 44, b"Expect:"),
    *(b"X-Mainspring-Attempt: 1", b"X-Mainspring-Fence: 1", b"User-Agent: Mainspring"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--open", type=int, default=10_000)
    parser.add_argument("--only", choices=["rate", "open", "neighbour"])
    arguments = parser.parse_args()
    _raise_descriptor_limit()
    parts: dict[str, Callable[[], Coroutine[None, None, None]]] = {
        "rate": lambda: _rate(arguments.seconds),
        "open": lambda: _open(arguments.open),
        "neighbour": lambda: _neighbour(arguments.seconds),
    }
    for name, part in parts.items():
        if arguments.only in (None, name):
            asyncio.run(part())


# --- 1: the rate ------------------------------------------------------------------------------


async def _rate(seconds: float) -> None:
    async with _receiver(0) as port:
        url = f"http://127.0.0.1:{port}/hook"
        bare = await asyncio.to_thread(_bare_sender, url, seconds / 3)
        print(f"bare sender         {bare:8.0f} requests/s")
        async with bench(**_SETTINGS) as server:
            async with server.client.post("/v1/secrets", data=b"{}", headers=_JSON) as answer:
                assert answer.status == 201, await answer.text()
            before = cpu_seconds(server.node_pid), cpu_seconds(server.postgres_pid)
            started = time.monotonic()
            task = {"target": {"type": "http", "url": url}, "payload": _PAYLOAD}
            feed = Feed(task, batch=_BATCH, producers=3, backlog=8000)
            sent = await feed.run(server, started + seconds)
            elapsed = time.monotonic() - started
            node = cpu_seconds(server.node_pid) - before[0]
            postgres = cpu_seconds(server.postgres_pid) - before[1]
            await _check_statuses(server)
        rate = sent / elapsed
        print(f"end to end          {rate:8.0f} webhooks/s  ({sent} in {elapsed:.1f} s, signed)")
        print(
            f"processor time      node {node / sent * 1e6:.0f} µs each ({node / elapsed:.0%} of a"
            f" core), PostgreSQL {postgres / sent * 1e6:.0f} µs ({postgres / elapsed:.0%})"
        )
        print(f"ratio               {rate / bare:8.2f}")


async def _check_statuses(server: Bench) -> None:
    connection = await asyncpg.connect(server.database_url)
    failed = await connection.fetchval("SELECT count(*) FROM executions WHERE status_code <> 200")
    assert not failed, f"{failed} webhooks failed"
    await connection.close()


def _bare_sender(url: str, seconds: float, concurrency: int = 256) -> float:
    """The sender thread alone, with requests that are ready to go."""
    egress = EgressRules(parse_networks("127.0.0.0/8"))
    body = msgspec.json.encode(_PAYLOAD)
    over, done, deadline = threading.Event(), 0, time.monotonic() + seconds
    keys = ((UUID(int=number), 1) for number in count())

    def requests(wanted: int) -> list[TransferRequest]:
        chosen = islice(keys, wanted)
        return [TransferRequest(key, url, "POST", _HEADERS, body, 30, egress) for key in chosen]

    def deliver(replies: Sequence[TransferReply]) -> None:
        nonlocal done
        if over.is_set():
            return  # what is still under way at the end is broken off
        assert all(reply.status == 200 for reply in replies), replies[0]
        done += len(replies)
        if time.monotonic() < deadline:
            sender.send(requests(len(replies)))
        else:
            over.set()

    sender = ThreadSender(SenderSettings(), deliver)
    started = time.monotonic()
    sender.send(requests(concurrency))
    over.wait()
    rate = done / (time.monotonic() - started)
    sender.stop()
    return rate


# --- 2: open webhooks -------------------------------------------------------------------------


async def _open(wanted: int) -> None:
    async with _receiver(10) as port, bench(**_SETTINGS) as server:
        # Many hosts, as each may have only its share of the connections.
        tasks = [
            {
                "target": {"type": "http", "url": f"http://127.0.0.{n % 100 + 1}:{port}/hook"},
                "payload": _PAYLOAD,
                "timeout": 120,
            }
            for n in range(wanted)
        ]
        before, before_open = memory_mb(server.node_pid), _descriptors(server.node_pid)
        for start in range(0, wanted, _BATCH):
            body = msgspec.json.encode({"tasks": tasks[start : start + _BATCH]})
            async with server.client.post("/v1/tasks/batch", data=body, headers=_JSON) as answer:
                assert answer.status == 201, await answer.text()
        connection = await asyncpg.connect(server.database_url)
        most_open, most_memory = 0, 0.0
        while await connection.fetchval("SELECT count(*) FROM tasks"):
            most_open = max(most_open, _descriptors(server.node_pid) - before_open)
            most_memory = max(most_memory, memory_mb(server.node_pid))
            await asyncio.sleep(0.2)
        done = await connection.fetchval(
            "SELECT count(*) FROM executions WHERE outcome = 'succeeded'"
        )
        await connection.close()
    print(f"open webhooks       {most_open} at once, {done} of {wanted} succeeded")
    print(f"node memory         {most_memory:.0f} MB at most ({before:.0f} MB before)")


def _descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


# --- 3: the neighbour -------------------------------------------------------------------------


async def _neighbour(seconds: float) -> None:
    """Start delays of a quiet tenant, without and with a neighbour whose host never answers."""
    async with _receiver(0) as quick, _receiver(-1) as dead:
        settings = {**_SETTINGS, "slots": 10_000, "http_per_tenant": 2_000}
        async with bench(**settings) as server:
            neighbour = await _second_tenant(server)
            await _delays(server, quick, 2)  # connections and plans are made
            alone = await _delays(server, quick, seconds / 2)
            await _flood(server, neighbour, dead)
            # Only the host is slow, not the creating of its tasks: that is over by now.
            await asyncio.sleep(5)
            beside = await _delays(server, quick, seconds / 2)
    for name, delays in (("alone", alone), ("beside it", beside)):
        p50, p99 = percentile(delays, 50) * 1000, percentile(delays, 99) * 1000
        print(f"{name:19} p50 {p50:6.1f} ms, p99 {p99:6.1f} ms, max {max(delays) * 1000:6.1f} ms")
    cost = (percentile(beside, 99) - percentile(alone, 99)) * 1000
    print(f"cost at p99         {cost:8.1f} ms")


async def _delays(server: Bench, port: int, seconds: float, rate: int = 100) -> list[float]:
    """Due to finished, of webhooks that come one by one."""
    task = {"target": {"type": "http", "url": f"http://127.0.0.1:{port}/"}, "payload": _PAYLOAD}
    body, wanted = msgspec.json.encode(task), int(seconds * rate)
    mark = await _last_id(server)
    started = time.monotonic()

    async def create(n: int) -> None:
        await asyncio.sleep(max(0.0, started + n / rate - time.monotonic()))
        async with server.client.post("/v1/tasks", data=body, headers=_JSON) as answer:
            assert answer.status == 201, await answer.text()

    await asyncio.gather(*(create(n) for n in range(wanted)))
    connection = await asyncpg.connect(server.database_url)
    query = (
        "SELECT extract(epoch FROM finished_at - due_at)::float8 AS delay FROM task_history"
        " WHERE tenant_id = $1 AND id > $2"
    )
    async with asyncio.timeout(30):
        while len(rows := await connection.fetch(query, server.tenant_id, mark)) < wanted:  # noqa: ASYNC110 - rows in a table
            await asyncio.sleep(0.1)
    await connection.close()
    return [row["delay"] for row in rows]


async def _last_id(server: Bench) -> UUID:
    connection = await asyncpg.connect(server.database_url)
    found = await connection.fetchval(
        "SELECT id FROM task_history WHERE tenant_id = $1 ORDER BY id DESC LIMIT 1",
        server.tenant_id,
    )
    await connection.close()
    return UUID(int=0) if found is None else UUID(str(found))


async def _second_tenant(server: Bench) -> str:
    store = Database(DatabaseOptions(server.database_url, connections=1))
    await store.open()
    keys = KeyStore(store)
    tenant_id = await keys.ensure_tenant("neighbour")
    scopes = frozenset({"read", "write"})
    await keys.add(NewKey("neighbour", "ms_neighbour", tenant_id, scopes))
    await store.close()
    return "ms_neighbour"


async def _flood(server: Bench, key: str, port: int) -> None:
    """Twenty thousand tasks for one host that accepts and never answers."""
    task = {
        "target": {"type": "http", "url": f"http://127.0.0.1:{port}/"},
        "payload": _PAYLOAD,
        "timeout": 300,
    }
    body = msgspec.json.encode({"tasks": [task] * _BATCH})
    headers = {**_JSON, "Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(server.url) as client:
        for _ in range(40):
            async with client.post("/v1/tasks/batch", data=body, headers=headers) as answer:
                assert answer.status == 201, await answer.text()


@asynccontextmanager
async def _receiver(delay: float) -> AsyncIterator[int]:
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.receivers", str(port), str(delay)]
    process = await asyncio.to_thread(subprocess.Popen, command)
    try:
        async with asyncio.timeout(10):
            while not await _listens(port):  # noqa: ASYNC110 - it has no other signal
                await asyncio.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def _raise_descriptor_limit() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
