"""Dead letters: found, counted, replayed once, archived, removed."""

import asyncio
from datetime import datetime
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import pytest

from mainspring.api.dead_letters import replaying
from mainspring.api.http.parameters import encode_cursor
from mainspring.domain.execution import TaskError
from support.asgi import Answer
from support.finished_tasks import INJECTIONS, NOOP, TaskFinisher
from support.in_process_api import InProcessApi
from support.waiting import eventually

URL = "/v1/dead-letters"


@pytest.fixture
def dead(api: InProcessApi) -> TaskFinisher:
    return TaskFinisher(api)


async def items(api: InProcessApi, query: str = "") -> list[dict[str, Any]]:
    answer = await api.admin.get(f"{URL}?{query}")
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


async def names(api: InProcessApi, query: str = "") -> list[str]:
    return [item["task"]["name"] for item in await items(api, query)]


# --- reading -------------------------------------------------------------------------------------


async def test_a_dead_letter_shows_the_whole_task(api: InProcessApi, dead: TaskFinisher) -> None:
    made = await dead.make_dead_letter(name="n", payload={"a": 1}, labels={"k": "v"}, priority=7)
    letter = (await api.admin.get(f"{URL}/{made['id']}")).json()
    read = (await api.admin.get(f"/v1/tasks/{made['id']}")).json()
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
    assert await items(api) == [letter]


async def test_a_dead_letter_outlives_history(api: InProcessApi, dead: TaskFinisher) -> None:
    made = await dead.make_dead_letter(name="n", payload=[1])
    before = (await api.admin.get(f"{URL}/{made['id']}")).json()
    await api.database.fetch("DELETE FROM task_history")
    assert (await api.admin.get(f"{URL}/{made['id']}")).json() == before


async def test_listing(api: InProcessApi, dead: TaskFinisher) -> None:
    for n in range(7):
        queue = "q" if n % 2 else "default"
        await dead.make_dead_letter(f"no {n}", name=f"n{n}", queue=queue, labels={"n": str(n)})
    seen, cursor = [], ""
    while True:
        page = (await api.admin.get(f"{URL}?limit=3{cursor}")).json()
        seen += [item["task"]["name"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == [f"n{n}" for n in range(6, -1, -1)]
    assert await names(api, "queue=q") == ["n5", "n3", "n1"]
    assert await names(api, "name=n4") == ["n4"]
    assert await names(api, "label=n:2") == ["n2"]
    assert await names(api, "died_after=2100-01-01T00:00:00Z") == []
    assert len(await names(api, "died_before=2100-01-01T00:00:00Z")) == 7
    first = (await items(api, "limit=1"))[0]
    assert first["task"]["payload"] == {}
    assert "payload" not in (await items(api, "limit=1&payload=false"))[0]["task"]
    await api.admin.post(f"{URL}/{first['id']}/archive")
    assert await names(api, "resolved=true") == ["n6"]
    assert len(await names(api, "resolved=false")) == 6
    for bad in ("resolved=maybe", "cursor=x", "limit=0", "died_after=soon", "nmae=x", "name=%00"):
        assert (await api.admin.get(f"{URL}?{bad}")).status == 422, bad


async def test_a_page_of_heavy_payloads_ends_early(
    api: InProcessApi, dead: TaskFinisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.store.dead_letters.HEAVIEST_PAGE", 1000)
    for _ in range(3):
        await dead.make_dead_letter(payload="x" * 600)
    page = (await api.admin.get(URL)).json()
    assert len(page["items"]) == 2
    rest = (await api.admin.get(f"{URL}?cursor={page['next_cursor']}")).json()
    assert len(rest["items"]) == 1
    assert len(await items(api, "payload=false")) == 3


async def test_dead_letters_are_counted_by_error(api: InProcessApi, dead: TaskFinisher) -> None:
    for n in range(3):
        await dead.make_dead_letter(f"row {n} of {uuid4()} at 0x{n:08x} is bad", name="a")
    last = await dead.make_dead_letter("disk full", name="b")
    assert "next_cursor" not in (await api.admin.get(f"{URL}?group=true")).json()
    groups = await items(api, "group=true")
    assert [group["count"] for group in groups] == [3, 1]
    assert sorted(groups[0]) == [
        *("count", "error", "example_id", "fingerprint", "first_at", "last_at")
    ]
    assert groups[1]["example_id"] == last["id"]
    assert groups[1]["error"] == {"code": "failed", "message": "disk full"}
    assert groups[0]["first_at"] < groups[0]["last_at"]
    kind = groups[0]["fingerprint"]
    assert await names(api, f"fingerprint={kind}") == ["a"] * 3
    assert len(await items(api, "group=true&name=b")) == 1
    assert await items(api, "group=true&resolved=true") == []


# --- replaying -----------------------------------------------------------------------------------


async def test_a_replay_is_the_same_work_once_more(api: InProcessApi, dead: TaskFinisher) -> None:
    made = await dead.make_dead_letter(
        name="n", payload={"a": 1}, queue="q", priority=8, labels={"k": "v"}, timeout=7,
        retry={"max_attempts": 2}, concurrency={"key": "c", "limit": 3},
    )  # fmt: skip
    answer = await api.admin.post(f"{URL}/{made['id']}/replay")
    new = answer.json()
    assert (answer.status, answer.headers["location"]) == (201, f"/v1/tasks/{new['id']}")
    assert new["id"] != made["id"]
    assert (new["replay_of"], new["state"]) == (made["id"], "scheduled")
    same = ("name", "payload", "queue", "priority", "labels", "timeout", "retry", "target")
    assert [new[field] for field in same] == [made[field] for field in same]
    assert new["concurrency"] == {"key": "c", "limit": 3}
    assert (await api.admin.get(f"/v1/tasks/{new['id']}")).json() == new
    assert await dead.count("wakes") >= 1
    letter = (await api.admin.get(f"{URL}/{made['id']}")).json()
    assert (letter["resolution"], letter["replayed_as"]) == ("replayed", new["id"])
    await dead.end(new["id"], TaskError("failed", "again"))
    ended = (await api.admin.get(f"/v1/tasks/{new['id']}")).json()
    assert (ended["state"], ended["replay_of"]) == ("failed", made["id"])
    [second] = await items(api, "resolved=false")
    assert second["task"] == ended


async def test_replayed_twice_is_replayed_once(api: InProcessApi, dead: TaskFinisher) -> None:
    made = await dead.make_dead_letter()
    url = f"{URL}/{made['id']}/replay"
    clients = [api.admin, api.another_node().admin] * 10
    answers = await asyncio.gather(*(client.post(url) for client in clients))
    assert sorted(answer.status for answer in answers) == [200] * 19 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len({answer.headers["location"] for answer in answers}) == 1
    assert await dead.count() == 1
    assert (await api.admin.post(f"{URL}/{made['id']}/archive")).status == 409
    new = answers[0].json()["id"]
    assert (await api.admin.call("DELETE", f"/v1/tasks/{new}")).status == 204
    assert (await api.admin.post(url)).status == 409


async def test_archiving(api: InProcessApi, dead: TaskFinisher) -> None:
    made = await dead.make_dead_letter()
    answers = [await api.admin.post(f"{URL}/{made['id']}/archive") for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].body == answers[1].body
    assert answers[0].json()["resolution"] == "archived"
    # Put away by mistake: it can still be replayed.
    assert (await api.admin.post(f"{URL}/{made['id']}/replay")).status == 201


async def test_removal_is_audited(api: InProcessApi, dead: TaskFinisher) -> None:
    made = await dead.make_dead_letter()
    assert (await api.admin.call("DELETE", f"{URL}/{made['id']}")).status == 204
    assert (await api.admin.call("DELETE", f"{URL}/{made['id']}")).status == 404
    rows = await api.database.fetch("SELECT actor, action, subject FROM audit")
    assert [tuple(row) for row in rows] == [("key:a-all", "dead_letter.purged", made["id"])]
    assert (await api.admin.get(f"/v1/tasks/{made['id']}")).status == 200


async def replay(api: InProcessApi, query: str = "", **body: object) -> Answer:
    return await api.admin.post(f"{URL}/replay{query}", {"filter": {}, **body})


async def test_many_are_replayed_oldest_first(api: InProcessApi, dead: TaskFinisher) -> None:
    letters = [await dead.make_dead_letter(name=f"n{n % 2}") for n in range(6)]
    dry = await replay(api, "?dry_run=true", filter={"name": "n0"})
    assert dry.json()["replayed"] == 3
    assert await dead.count() == 0
    done = (await replay(api, filter={"name": "n0"}, first=2)).json()
    assert (done["replayed"], done["stopped"]) == (2, False)
    tasks = [(await api.admin.get(f"/v1/tasks/{i}")).json() for i in done["ids"]]
    assert [task["replay_of"] for task in tasks] == [letters[0]["id"], letters[2]["id"]]
    assert (await replay(api)).json()["replayed"] == 4
    assert (await replay(api)).json() == {
        "replayed": 0,
        "ids": [],
        "stopped": False,
        "stopped_because": None,
    }
    assert await dead.count() == 6


async def test_two_replays_of_everything_share_the_work(
    api: InProcessApi, dead: TaskFinisher
) -> None:
    for _ in range(15):
        await dead.make_dead_letter()
    other = api.another_node()
    answers = await asyncio.gather(*(replay(o) for o in (api, other, api, other)))
    assert sum(answer.json()["replayed"] for answer in answers) == 15
    assert await dead.count() == 15


async def test_a_replay_stops_when_too_many_fail(
    api: InProcessApi, dead: TaskFinisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "_CAREFUL_CHUNK", 2)
    for _ in range(6):
        await dead.make_dead_letter()
    call = asyncio.create_task(replay(api, stop_on_failure_rate=0.5))

    async def begun() -> bool:
        return await dead.count() == 2

    await eventually(begun, within=5, what="the first step is done")
    for row in await api.database.fetch("SELECT id FROM tasks"):
        await dead.end(str(row["id"]), TaskError("failed", "still"))
    done = (await call).json()
    assert (done["replayed"], done["stopped"], done["stopped_because"]) == (2, True, "failure_rate")
    assert await dead.count() == 0


async def test_a_small_replay_is_judged_as_well(api: InProcessApi, dead: TaskFinisher) -> None:
    for _ in range(10):
        await dead.make_dead_letter()
    call = asyncio.create_task(replay(api, first=10, stop_on_failure_rate=0.5))
    await end_all(api, dead, call)
    done = (await call).json()
    assert (done["replayed"], done["stopped"], done["stopped_because"]) == (2, True, "failure_rate")


async def test_a_replay_skips_tasks_that_failed_again_meanwhile(
    api: InProcessApi, dead: TaskFinisher
) -> None:
    """Whatever it finds when it looks for more: what it made itself is not what was meant."""
    for _ in range(4):
        await dead.make_dead_letter()
    call = asyncio.create_task(replay(api, first=10, stop_on_failure_rate=1))
    await end_all(api, dead, call)
    done = (await call).json()
    assert (done["replayed"], done["stopped"]) == (4, False)


async def end_all(api: InProcessApi, dead: TaskFinisher, call: "asyncio.Task[Answer]") -> None:
    """Let all that is there fail, as long as the call goes on."""
    while not call.done():
        for row in await api.database.fetch("SELECT id FROM tasks"):
            await dead.end(str(row["id"]), TaskError("failed", "still"))
        await asyncio.sleep(0.01)


async def test_a_replay_goes_on_while_enough_succeed(
    api: InProcessApi, dead: TaskFinisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing is known in time, and never for longer than a call may take."""
    monkeypatch.setattr(replaying, "_CAREFUL_CHUNK", 2)
    monkeypatch.setattr(replaying, "_WAIT_PER_CHUNK", 0.0)
    for _ in range(4):
        await dead.make_dead_letter()
    assert (await replay(api, stop_on_failure_rate=0, first=3)).json()["replayed"] == 3
    monkeypatch.setattr(replaying, "_LONGEST", 0.0)
    for _ in range(4):
        await dead.make_dead_letter()
    done = (await replay(api, stop_on_failure_rate=0)).json()
    assert (done["replayed"], done["stopped_because"]) == (2, "time")


async def test_replays_that_fail_again_are_left_alone(
    api: InProcessApi, dead: TaskFinisher
) -> None:
    """What a call has just made is not what it was asked to replay."""
    await dead.make_dead_letter()
    first = (await replay(api)).json()["ids"]
    await dead.end(first[0], TaskError("failed", "again"))
    upto = UUID(first[0])
    assert [UUID(item["id"]) for item in await items(api, "resolved=false")] == [upto]
    assert (await replay(api)).json()["replayed"] == 1


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
async def test_tasks_that_cannot_be_replayed_are_reported(
    api: InProcessApi, body: object, pointer: str
) -> None:
    answer = await api.admin.post(f"{URL}/replay", body)
    assert (answer.status, answer.pointers()) == (422, [pointer])


# --- who may, and what must not get through ------------------------------------------------------


async def test_another_tenants_dead_letter_is_not_found(
    api: InProcessApi, dead: TaskFinisher
) -> None:
    made = await dead.make_dead_letter()
    for shown in (made["id"], str(uuid4()), "x", made["id"].replace("-", "")):
        for method, path in [
            ("GET", ""), ("DELETE", ""), ("POST", "/replay"), ("POST", "/archive")
        ]:  # fmt: skip
            answer = await api.other_tenant.call(method, f"{URL}/{shown}{path}")
            assert answer.status == 404, (method, path)
            assert answer.json()["detail"] == f"there is no dead letter {shown!r}"
    assert (await api.other_tenant.get(URL)).json()["items"] == []
    assert (await api.other_tenant.get(f"{URL}?group=true")).json()["items"] == []
    assert (await api.other_tenant.post(f"{URL}/replay", {"filter": {}})).json()["replayed"] == 0
    assert len(await items(api, "resolved=false")) == 1


async def test_scopes(api: InProcessApi, dead: TaskFinisher) -> None:
    made = await dead.make_dead_letter()
    reader, writer = api.client("a:read"), api.client("a:write")
    assert (await reader.get(URL)).status == 200
    assert (await writer.get(URL)).status == 403
    assert (await reader.post(f"{URL}/{made['id']}/replay")).status == 403
    assert (await reader.post(f"{URL}/replay", {"filter": {}})).status == 403
    assert (await reader.call("DELETE", f"{URL}/{made['id']}")).status == 403
    assert (await api.operator.get(URL)).status == 403


@pytest.mark.parametrize("text", INJECTIONS)
async def test_values_stay_values(api: InProcessApi, dead: TaskFinisher, text: str) -> None:
    await dead.make_dead_letter(name="mine")
    await TaskFinisher(api, "b").make_dead_letter(name="theirs")
    told = quote(text)
    for name in ("name", "queue", "fingerprint"):
        assert await items(api, f"{name}={told}") == []
        assert await items(api, f"group=true&{name}={told}") == []
        answer = await replay(api, filter={name: text})
        assert (answer.status, answer.json()["replayed"]) == (200, 0)
    assert await items(api, f"label={quote('x:' + text)}") == []
    for name in ("cursor", "limit", "died_after", "resolved", "sort", "group"):
        assert (await api.admin.get(f"{URL}?{name}={told}")).status == 422
    assert await dead.count("dead_letters") == 2


async def test_a_forged_cursor_shows_nothing_of_others(
    api: InProcessApi, dead: TaskFinisher
) -> None:
    theirs = await TaskFinisher(api, "b").make_dead_letter(name="theirs")
    cursor = encode_cursor(UUID(int=UUID(theirs["id"]).int + 1))
    assert await items(api, f"cursor={cursor}") == []


async def test_a_death_in_another_time_zone(api: InProcessApi, dead: TaskFinisher) -> None:
    made = await dead.make_dead_letter()
    await api.database.fetch(
        "UPDATE dead_letters SET attempts = jsonb_set(attempts, '{0,finished_at}',"
        " '\"2026-01-01T10:00:00+02:00\"')"
    )
    letter = (await api.admin.get(f"{URL}/{made['id']}")).json()
    assert letter["attempts"][0]["finished_at"] == "2026-01-01T08:00:00Z"
    assert datetime.fromisoformat(letter["died_at"]).tzinfo is not None


async def test_a_first_answer_is_kept_for_verbs_too(api: InProcessApi, dead: TaskFinisher) -> None:
    made = await dead.make_dead_letter()
    url = f"{URL}/{made['id']}/replay"
    first = await api.admin.post(url, idempotency_key="k")
    again = await api.another_node().admin.post(url, idempotency_key="k")
    assert (first.status, again.status, again.body) == (201, 201, first.body)
    assert again.headers["location"] == first.headers["location"]
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json()["target"] == NOOP
