"""How runs move on in the store: counters, joins, conditions, lists, and what a person may do."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from mainspring.store.database import Database, DatabaseOptions
from support.runs import RunWorld, step, workflow

DIAMOND = workflow(step("a"), step("b", "a"), step("c", "a"), step("d", "b", "c"), step("e", "d"))


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[RunWorld]:
    database = Database(DatabaseOptions(database_url))
    await database.open()
    made = RunWorld(database)
    await made.open()
    yield made
    await database.close()


async def test_a_diamond_runs_in_order(world: RunWorld) -> None:
    run = await world.begin(DIAMOND)
    assert await world.states(run) == {
        "a": "scheduled", "b": "blocked", "c": "blocked", "d": "blocked", "e": "blocked"
    }  # fmt: skip
    order = await world.drain(run)
    assert (order[0], *order[3:]) == ("a", "d", "e")
    assert sorted(order) == ["a", "b", "c", "d", "e"]
    assert await world.state(run) == "completed"
    assert set((await world.states(run)).values()) == {"completed"}


async def test_a_join_whose_parents_end_at_once_on_many_connections_starts_once(
    world: RunWorld,
) -> None:
    """The last two of them must see each other: else the join starts never, or twice."""
    parents = [f"p{n}" for n in range(40)]
    run = await world.begin(workflow(*map(step, parents), step("join", *parents)))
    assignments = await world.claim(run)
    answers = await asyncio.gather(*(world.report([a]) for a in assignments))
    released = [row for answer in answers for row in answer.moved.rows]
    assert len(released) == 1
    assert (await world.step(run, "join")).finished == 40
    assert await world.drain(run) == ["join"]
    assert await world.state(run) == "completed"


async def test_an_outcome_that_is_written_twice_counts_once(world: RunWorld) -> None:
    run = await world.begin(workflow(step("a"), step("b"), step("c", "a", "b")))
    first, _second = await world.claim(run)
    assert len((await world.report([first])).accepted) == 1
    again = await world.report([first])
    assert (again.accepted, again.moved.rows) == (set(), [])
    assert (await world.step(run, "c")).finished == 1
