"""What executors say is recorded, also when the database cannot store the words they use."""

import pytest

from support.client import fail, noop
from support.cluster import Cluster


@pytest.mark.parametrize("attempts", [1, 3])
async def test_an_error_that_cannot_be_stored_holds_nobody_up(
    cluster: Cluster, attempts: int
) -> None:
    """PostgreSQL stores no NUL: the task fails all the same, and its neighbours never notice."""
    tenant = await cluster.tenant()
    client = (await cluster.start()).client(tenant)
    poison = fail(attempts, payload={"message": "a\0b"})
    ids = await client.batch([noop(), poison, fail(2), poison, noop()])
    await cluster.evidence.all_finished(ids, within=10)
    await cluster.evidence.sound(ids)
    ended = (await client.get(f"/v1/tasks/{ids[1]}")).json()
    assert (ended["state"], ended["attempts"]) == ("failed", attempts)
    assert ended["error"]["code"] == "unstorable-result"
