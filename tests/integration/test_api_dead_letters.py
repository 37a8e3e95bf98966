"""Dead letters: found, counted, replayed once, archived, removed."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import pytest

from mainspring.api.dead_letters import replaying
from mainspring.api.http.parameters import encode_cursor
from mainspring.config import Config
from mainspring.domain.execution import TaskError
from support.api import Office, opened_office
from support.asgi import Answer
from support.letters import INJECTIONS, NOOP, Undertaker
from support.waiting import eventually

URL = "/v1/dead-letters"


@pytest.fixture
async def office(database_url: str) -> AsyncIterator[Office]:
    async with opened_office(database_url, Config()) as opened:
        yield opened


@pytest.fixture
def dead(office: Office) -> Undertaker:
    return Undertaker(office)


async def items(office: Office, query: str = "") -> list[dict[str, Any]]:
    answer = await office.admin.get(f"{URL}?{query}")
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


async def names(office: Office, query: str = "") -> list[str]:
    return [item["task"]["name"] for item in await items(office, query)]


# --- reading -------------------------------------------------------------------------------------


async def test_a_letter_shows_the_task_whole(office: Office, dead: Undertaker) -> None:
    made = await dead.bury(name="n", payload={"a": 1}, labels={"k": "v"}, priority=7)
    letter = (await office.admin.get(f"{URL}/{made['id']}")).json()
    read = (await office.admin.get(f"/v1/tasks/{made['id']}")).json()
    assert letter["task"] == read
    assert read["state"] == "failed"
    assert letter["id"] == made["id"]
    assert letter["final_error"] == {"code": "failed", "message": "boom"}
    assert letter["reason"] == "exhausted"
    assert (letter["resolution"], letter["resolved_at"], letter["replayed_as"]) == (None,) * 3
    [attempt] = letter["attempts"]
    assert sorted(attempt) == ["attempt", "error", "finished_at", "outcome"]
    assert (attempt["attempt"], attempt["outcome"]) == (1, "failed")
    assert attempt["finished_at"] == letter["died_at"] == read["finished_at"]
    assert await items(office) == [letter]


async def test_a_letter_outlives_history(office: Office, dead: Undertaker) -> None:
    made = await dead.bury(name="n", payload=[1])
    before = (await office.admin.get(f"{URL}/{made['id']}")).json()
    await office.database.fetch("DELETE FROM task_history")
    assert (await office.admin.get(f"{URL}/{made['id']}")).json() == before


async def test_listing(office: Office, dead: Undertaker) -> None:
    for n in range(7):
        queue = "q" if n % 2 else "default"
        await dead.bury(f"no {n}", name=f"n{n}", queue=queue, labels={"n": str(n)})
    seen, cursor = [], ""
    while True:
        page = (await office.admin.get(f"{URL}?limit=3{cursor}")).json()
        seen += [item["task"]["name"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == [f"n{n}" for n in range(6, -1, -1)]
    assert await names(office, "queue=q") == ["n5", "n3", "n1"]
    assert await names(office, "name=n4") == ["n4"]
    assert await names(office, "label=n:2") == ["n2"]
    assert await names(office, "died_after=2100-01-01T00:00:00Z") == []
    assert len(await names(office, "died_before=2100-01-01T00:00:00Z")) == 7
    first = (await items(office, "limit=1"))[0]
    assert first["task"]["payload"] == {}
    assert "payload" not in (await items(office, "limit=1&payload=false"))[0]["task"]
    await office.admin.post(f"{URL}/{first['id']}/archive")
    assert await names(office, "resolved=true") == ["n6"]
    assert len(await names(office, "resolved=false")) == 6
    for bad in ("resolved=maybe", "cursor=x", "limit=0", "died_after=soon", "nmae=x", "name=%00"):
        assert (await office.admin.get(f"{URL}?{bad}")).status == 422, bad


async def test_a_page_of_heavy_payloads_ends_early(
    office: Office, dead: Undertaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.store.dead_letters.HEAVIEST_PAGE", 1000)
    for _ in range(3):
        await dead.bury(payload="x" * 600)
    page = (await office.admin.get(URL)).json()
    assert len(page["items"]) == 2
    rest = (await office.admin.get(f"{URL}?cursor={page['next_cursor']}")).json()
    assert len(rest["items"]) == 1
    assert len(await items(office, "payload=false")) == 3


async def test_letters_are_counted_by_what_went_wrong(office: Office, dead: Undertaker) -> None:
    for n in range(3):
        await dead.bury(f"row {n} of {uuid4()} at 0x{n:08x} is bad", name="a")
    last = await dead.bury("disk full", name="b")
    assert "next_cursor" not in (await office.admin.get(f"{URL}?group=true")).json()
    groups = await items(office, "group=true")
    assert [group["count"] for group in groups] == [3, 1]
    assert sorted(groups[0]) == [
        *("count", "error", "example_id", "fingerprint", "first_at", "last_at")
    ]
    assert groups[1]["example_id"] == last["id"]
    assert groups[1]["error"] == {"code": "failed", "message": "disk full"}
    assert groups[0]["first_at"] < groups[0]["last_at"]
    kind = groups[0]["fingerprint"]
    assert await names(office, f"fingerprint={kind}") == ["a"] * 3
    assert len(await items(office, "group=true&name=b")) == 1
    assert await items(office, "group=true&resolved=true") == []


# --- replaying -----------------------------------------------------------------------------------


async def test_a_replay_is_the_same_work_once_more(office: Office, dead: Undertaker) -> None:
    made = await dead.bury(
        name="n", payload={"a": 1}, queue="q", priority=8, labels={"k": "v"}, timeout=7,
        retry={"max_attempts": 2}, concurrency={"key": "c", "limit": 3},
    )  # fmt: skip
    answer = await office.admin.post(f"{URL}/{made['id']}/replay")
    new = answer.json()
    assert (answer.status, answer.headers["location"]) == (201, f"/v1/tasks/{new['id']}")
    assert new["id"] != made["id"]
    assert (new["replay_of"], new["state"]) == (made["id"], "scheduled")
    same = ("name", "payload", "queue", "priority", "labels", "timeout", "retry", "target")
    assert [new[field] for field in same] == [made[field] for field in same]
    assert new["concurrency"] == {"key": "c", "limit": 3}
    assert (await office.admin.get(f"/v1/tasks/{new['id']}")).json() == new
    assert await dead.count("wakes") >= 1
    letter = (await office.admin.get(f"{URL}/{made['id']}")).json()
    assert (letter["resolution"], letter["replayed_as"]) == ("replayed", new["id"])
    await dead.end(new["id"], TaskError("failed", "again"))
    ended = (await office.admin.get(f"/v1/tasks/{new['id']}")).json()
    assert (ended["state"], ended["replay_of"]) == ("failed", made["id"])
    [second] = await items(office, "resolved=false")
    assert second["task"] == ended


async def test_replayed_twice_is_replayed_once(office: Office, dead: Undertaker) -> None:
    made = await dead.bury()
    url = f"{URL}/{made['id']}/replay"
    clients = [office.admin, office.another_node().admin] * 10
    answers = await asyncio.gather(*(client.post(url) for client in clients))
    assert sorted(answer.status for answer in answers) == [200] * 19 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len({answer.headers["location"] for answer in answers}) == 1
    assert await dead.count() == 1
    assert (await office.admin.post(f"{URL}/{made['id']}/archive")).status == 409
    new = answers[0].json()["id"]
    assert (await office.admin.call("DELETE", f"/v1/tasks/{new}")).status == 204
    assert (await office.admin.post(url)).status == 409


async def test_archiving(office: Office, dead: Undertaker) -> None:
    made = await dead.bury()
    answers = [await office.admin.post(f"{URL}/{made['id']}/archive") for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].body == answers[1].body
    assert answers[0].json()["resolution"] == "archived"
    # Put away by mistake: it can still be replayed.
    assert (await office.admin.post(f"{URL}/{made['id']}/replay")).status == 201


async def test_removal_is_audited(office: Office, dead: Undertaker) -> None:
    made = await dead.bury()
    assert (await office.admin.call("DELETE", f"{URL}/{made['id']}")).status == 204
    assert (await office.admin.call("DELETE", f"{URL}/{made['id']}")).status == 404
    rows = await office.database.fetch("SELECT actor, action, subject FROM audit")
    assert [tuple(row) for row in rows] == [("key:a-all", "dead_letter.purged", made["id"])]
    assert (await office.admin.get(f"/v1/tasks/{made['id']}")).status == 200


async def replay(office: Office, query: str = "", **body: object) -> Answer:
    return await office.admin.post(f"{URL}/replay{query}", {"filter": {}, **body})


async def test_many_are_replayed_oldest_first(office: Office, dead: Undertaker) -> None:
    letters = [await dead.bury(name=f"n{n % 2}") for n in range(6)]
    dry = await replay(office, "?dry_run=true", filter={"name": "n0"})
    assert dry.json()["replayed"] == 3
    assert await dead.count() == 0
    done = (await replay(office, filter={"name": "n0"}, first=2)).json()
    assert (done["replayed"], done["stopped"]) == (2, False)
    tasks = [(await office.admin.get(f"/v1/tasks/{i}")).json() for i in done["ids"]]
    assert [task["replay_of"] for task in tasks] == [letters[0]["id"], letters[2]["id"]]
    assert (await replay(office)).json()["replayed"] == 4
    assert (await replay(office)).json() == {
        "replayed": 0,
        "ids": [],
        "stopped": False,
        "stopped_because": None,
    }
    assert await dead.count() == 6


async def test_two_replays_of_everything_share_the_work(office: Office, dead: Undertaker) -> None:
    for _ in range(15):
        await dead.bury()
    other = office.another_node()
    answers = await asyncio.gather(*(replay(o) for o in (office, other, office, other)))
    assert sum(answer.json()["replayed"] for answer in answers) == 15
    assert await dead.count() == 15


async def test_a_replay_stops_when_too_many_fail(
    office: Office, dead: Undertaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "_CAREFUL_CHUNK", 2)
    for _ in range(6):
        await dead.bury()
    call = asyncio.create_task(replay(office, stop_on_failure_rate=0.5))

    async def begun() -> bool:
        return await dead.count() == 2

    await eventually(begun, within=5, what="the first step is done")
    for row in await office.database.fetch("SELECT id FROM tasks"):
        await dead.end(str(row["id"]), TaskError("failed", "still"))
    done = (await call).json()
    assert (done["replayed"], done["stopped"], done["stopped_because"]) == (2, True, "failure_rate")
    assert await dead.count() == 0


async def test_a_small_replay_is_judged_as_well(office: Office, dead: Undertaker) -> None:
    for _ in range(10):
        await dead.bury()
    call = asyncio.create_task(replay(office, first=10, stop_on_failure_rate=0.5))
    await end_all(office, dead, call)
    done = (await call).json()
    assert (done["replayed"], done["stopped"], done["stopped_because"]) == (2, True, "failure_rate")


async def test_a_replay_leaves_alone_what_died_again_meanwhile(
    office: Office, dead: Undertaker
) -> None:
    """Whatever it finds when it looks for more: what it made itself is not what was meant."""
    for _ in range(4):
        await dead.bury()
    call = asyncio.create_task(replay(office, first=10, stop_on_failure_rate=1))
    await end_all(office, dead, call)
    done = (await call).json()
    assert (done["replayed"], done["stopped"]) == (4, False)


async def end_all(office: Office, dead: Undertaker, call: "asyncio.Task[Answer]") -> None:
    """Let all that is there fail, as long as the call goes on."""
    while not call.done():
        for row in await office.database.fetch("SELECT id FROM tasks"):
            await dead.end(str(row["id"]), TaskError("failed", "still"))
        await asyncio.sleep(0.01)


async def test_a_replay_goes_on_while_enough_succeed(
    office: Office, dead: Undertaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing is known in time, and never for longer than a call may take."""
    monkeypatch.setattr(replaying, "_CAREFUL_CHUNK", 2)
    monkeypatch.setattr(replaying, "_WAIT_PER_CHUNK", 0.0)
    for _ in range(4):
        await dead.bury()
    assert (await replay(office, stop_on_failure_rate=0, first=3)).json()["replayed"] == 3
    monkeypatch.setattr(replaying, "_LONGEST", 0.0)
    for _ in range(4):
        await dead.bury()
    done = (await replay(office, stop_on_failure_rate=0)).json()
    assert (done["replayed"], done["stopped_because"]) == (2, "time")


async def test_replays_that_die_again_are_left_alone(office: Office, dead: Undertaker) -> None:
    """What a call has just made is not what it was asked to replay."""
    await dead.bury()
    first = (await replay(office)).json()["ids"]
    await dead.end(first[0], TaskError("failed", "again"))
    upto = UUID(first[0])
    assert [UUID(item["id"]) for item in await items(office, "resolved=false")] == [upto]
    assert (await replay(office)).json()["replayed"] == 1


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, ""),
        ({"filter": {}, "first": 0}, "/first"),
        ({"filter": {}, "stop_on_failure_rate": 2}, "/stop_on_failure_rate"),
        ({"filter": {"nmae": "x"}}, "/filter/nmae"),
        ({"filter": {"name": "\x00"}}, "/filter/name"),
        ({"filter": {"label": "x"}}, "/filter/label"),
        ({"filter": {"label": ["a:b", "a:c"]}}, "/filter/label"),
        ({"filter": {"died_after": "0001-01-01T00:00:00+14:00"}}, "/filter/died_after"),
        ({"filter": {"resolved": True}}, "/filter/resolved"),
    ],
)
async def test_what_cannot_be_replayed_is_told(office: Office, body: object, pointer: str) -> None:
    answer = await office.admin.post(f"{URL}/replay", body)
    assert (answer.status, answer.pointers()) == (422, [pointer])


# --- who may, and what must not get through ------------------------------------------------------


async def test_another_tenants_letter_looks_like_none(office: Office, dead: Undertaker) -> None:
    made = await dead.bury()
    for shown in (made["id"], str(uuid4()), "x", made["id"].replace("-", "")):
        for method, path in [
            ("GET", ""), ("DELETE", ""), ("POST", "/replay"), ("POST", "/archive")
        ]:  # fmt: skip
            answer = await office.rival.call(method, f"{URL}/{shown}{path}")
            assert answer.status == 404, (method, path)
            assert answer.json()["detail"] == f"there is no dead letter {shown!r}"
    assert (await office.rival.get(URL)).json()["items"] == []
    assert (await office.rival.get(f"{URL}?group=true")).json()["items"] == []
    assert (await office.rival.post(f"{URL}/replay", {"filter": {}})).json()["replayed"] == 0
    assert len(await items(office, "resolved=false")) == 1


async def test_scopes(office: Office, dead: Undertaker) -> None:
    made = await dead.bury()
    reader, writer = office.client("a:read"), office.client("a:write")
    assert (await reader.get(URL)).status == 200
    assert (await writer.get(URL)).status == 403
    assert (await reader.post(f"{URL}/{made['id']}/replay")).status == 403
    assert (await reader.post(f"{URL}/replay", {"filter": {}})).status == 403
    assert (await reader.call("DELETE", f"{URL}/{made['id']}")).status == 403
    assert (await office.operator.get(URL)).status == 403


@pytest.mark.parametrize("text", INJECTIONS)
async def test_values_stay_values(office: Office, dead: Undertaker, text: str) -> None:
    await dead.bury(name="mine")
    await Undertaker(office, "b").bury(name="theirs")
    told = quote(text)
    for name in ("name", "queue", "fingerprint"):
        assert await items(office, f"{name}={told}") == []
        assert await items(office, f"group=true&{name}={told}") == []
        answer = await replay(office, filter={name: text})
        assert (answer.status, answer.json()["replayed"]) == (200, 0)
    assert await items(office, f"label={quote('x:' + text)}") == []
    for name in ("cursor", "limit", "died_after", "resolved", "sort", "group"):
        assert (await office.admin.get(f"{URL}?{name}={told}")).status == 422
    assert await dead.count("dead_letters") == 2


async def test_a_forged_cursor_shows_nothing_of_others(office: Office, dead: Undertaker) -> None:
    theirs = await Undertaker(office, "b").bury(name="theirs")
    cursor = encode_cursor(UUID(int=UUID(theirs["id"]).int + 1))
    assert await items(office, f"cursor={cursor}") == []


async def test_a_death_in_another_time_zone(office: Office, dead: Undertaker) -> None:
    made = await dead.bury()
    await office.database.fetch(
        "UPDATE dead_letters SET attempts = jsonb_set(attempts, '{0,finished_at}',"
        " '\"2026-01-01T10:00:00+02:00\"')"
    )
    letter = (await office.admin.get(f"{URL}/{made['id']}")).json()
    assert letter["attempts"][0]["finished_at"] == "2026-01-01T08:00:00Z"
    assert datetime.fromisoformat(letter["died_at"]).tzinfo is not None


async def test_a_first_answer_is_kept_for_verbs_too(office: Office, dead: Undertaker) -> None:
    made = await dead.bury()
    url = f"{URL}/{made['id']}/replay"
    first = await office.admin.post(url, idempotency_key="k")
    again = await office.another_node().admin.post(url, idempotency_key="k")
    assert (first.status, again.status, again.body) == (201, 201, first.body)
    assert again.headers["location"] == first.headers["location"]
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json()["target"] == NOOP
