"""Tasks that a caller's own transaction creates, with the statement that the SDK makes."""

from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

import mainspring
from mainspring import App, AsyncClient, Enqueue, NotFound
from support.cluster import Cluster

app = App(url="http://127.0.0.1:1", api_key="unused")


@app.task(queue="mail", retries=2, timeout=60, max_concurrency=3, requires={"tags": ["eu", "b-c"]})
def send(to: str, note: str = "") -> None: ...


def numbered(statement: str) -> str:
    """%s as asyncpg writes it: psycopg is not here, its form is."""
    pieces = statement.split("%s")
    return "".join(f"{piece}${n}" for n, piece in enumerate(pieces[:-1], 1)) + pieces[-1]


def from_names(statement: str, named: dict[str, str]) -> tuple[str, tuple[str, ...]]:
    """:name as asyncpg writes it, for the same reason."""
    for number, name in enumerate(named, 1):
        statement = statement.replace(f"({':' + name} AS", f"(${number} AS")
    return statement, tuple(named.values())


async def test_what_commits_is_there_and_what_is_undone_never_was(cluster: Cluster) -> None:
    node = await cluster.start()
    tenant = await cluster.tenant("acme")
    connection = await asyncpg.connect(cluster.database_url)
    later = datetime.now(UTC) + timedelta(days=1)
    wanted: Any = {**send.prepare("o'ann", note='"%s"'), "run_at": later, "labels": {"a": "b"}}
    enqueue = Enqueue(wanted, tenant="acme")
    async with AsyncClient(node.url, tenant.key) as client:
        for statement, values in (
            enqueue.asyncpg(),
            (numbered(enqueue.psycopg()[0]), enqueue.psycopg()[1]),
            from_names(*enqueue.named()),
        ):
            transaction = connection.transaction()
            await transaction.start()
            undone = await connection.fetchval(statement, *values)
            await transaction.rollback()
            with pytest.raises(NotFound):
                await client.tasks.get(undone)
            async with connection.transaction():
                made = await connection.fetchval(statement, *values)
            task = await client.tasks.get(made)
            assert task.payload == {"to": "o'ann", "note": '"%s"'}
            assert (task.queue, task.timeout, task.name) == ("mail", 60.0, "send")
            assert task.retry["max_attempts"] == 3
            assert task.concurrency == {"key": "task:send", "limit": 3}
            assert task.requires is not None
            assert sorted(task.requires["tags"]) == ["b-c", "eu"]
            assert (task.labels, task.due_at) == ({"a": "b"}, later)
        soon = Enqueue(
            {"target": mainspring.handler("x"), "delay": timedelta(hours=1)}, tenant="acme"
        )
        hour = Enqueue({"target": mainspring.handler("x"), "delay": 3600}, tenant="acme")
        for one in (soon, hour):
            statement, values = one.asyncpg()
            task = await client.tasks.get(await connection.fetchval(statement, *values))
            assert task.created_at is not None
            assert round((task.due_at - task.created_at).total_seconds()) == 3600
    await connection.close()
