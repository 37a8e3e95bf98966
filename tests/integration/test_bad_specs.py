"""Tasks that do not say what to do: each fails alone, whoever was to run it."""

from collections.abc import AsyncIterator

import pytest

from mainspring.postgres.database import Database, DatabaseOptions
from support.client import noop
from support.waiting import eventually
from support.workers import LocalNode, open_local_node, work


@pytest.fixture
async def local_node(database_url: str) -> AsyncIterator[LocalNode]:
    async with open_local_node(database_url) as opened:
        yield opened


async def test_a_spec_that_cannot_be_read_fails_its_task_alone(
    local_node: LocalNode, database_url: str
) -> None:
    later = {"delay": 3600}
    ids = await local_node.client.batch(
        [{**task, **later} for task in (noop(), noop(), work(), work())]
    )
    database = Database(DatabaseOptions(database_url, connections=1))
    await database.open()
    try:
        await database.fetch(
            "UPDATE tasks SET spec = '{\"target\": 5}' WHERE id = ANY ($1)",
            [ids[0], ids[2]],
        )
        await database.fetch(
            "WITH due AS (UPDATE tasks SET due_at = clock_timestamp(), rev = rev + 1 RETURNING *) "
            "INSERT INTO wakes (partition, tenant_id, task_id) "
            "SELECT partition, tenant_id, id FROM due"
        )
        (task,) = await local_node.worker().lease()
        assert task["id"] == str(ids[3])
        assert (await local_node.until(str(ids[1]), "completed"))["attempts"] == 1

        wanted = {(ids[n], "not_retryable", "bad-spec") for n in (0, 2)}

        async def both() -> bool:
            rows = await database.fetch("SELECT id, reason, final_error->>'code' FROM dead_letters")
            return {tuple(row) for row in rows} == wanted

        await eventually(both, within=5, what="both are dead letters")
        listed = (await local_node.client.get("/v1/tasks")).json()["items"]
        assert {task["id"] for task in listed} == {str(one) for one in ids}
    finally:
        await database.close()
