"""Schedules over the API and a real database, decided on by a node that is called by hand."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from time import perf_counter
from typing import Any, NoReturn
from unittest import mock
from uuid import UUID, uuid4

import pytest

from mainspring import timezones
from mainspring.config import Config
from mainspring.domain.ids import TaskIds
from mainspring.domain.partitions import PARTITIONS, Ownership
from mainspring.errors import StoreUnavailable
from mainspring.node.housekeeping import Housekeeper
from mainspring.node.state import NodeState
from mainspring.schedules.occurrences import DecidedSchedules, OccurrenceWriter
from mainspring.schedules.service import ScheduleService
from mainspring.store.schedules.calendars import CalendarStore
from mainspring.store.upkeep.housekeeping import HousekeepingStore
from support.asgi import Answer
from support.in_process_api import InProcessApi, open_api

URL = "/v1/schedules"
NOOP = {"target": {"type": "handler", "name": "mainspring.noop"}}


@dataclass
class ScheduleApi:
    """The API of tenant a, and the owner of every partition."""

    api: InProcessApi
    schedules: ScheduleService
    ownership: Ownership
    names: int = field(default=0)

    async def make(self, **fields: Any) -> dict[str, Any]:
        self.names += 1
        answer = await self.post("", {"name": f"s{self.names}", "task": NOOP, **fields})
        assert answer.status == 201, answer.body
        made: dict[str, Any] = answer.json()
        return made

    async def post(self, path: str, body: object = b"") -> Answer:
        return await self.api.admin.post(URL + path, body)

    async def get(self, path: str) -> Any:
        answer = await self.api.admin.get(URL + path)
        assert answer.status == 200, answer.body
        return answer.json()

    async def patch(self, path: str, body: object, **headers: str) -> Answer:
        return await self.api.admin.call("PATCH", URL + path, body, headers=headers)

    async def ledger(self, schedule: dict[str, Any]) -> list[tuple[str, int]]:
        """Decisions and how many occurrences they are about, oldest first."""
        found = await self.get(f"/{schedule['id']}/occurrences?limit=1000")
        return [(line["decision"], line["count"]) for line in reversed(found["items"])]

    async def outage(self, schedule: dict[str, Any], seconds: float) -> None:
        """Leave a schedule as an outage leaves it: nothing was decided for so long."""
        await self.api.database.fetch(
            "UPDATE schedules SET decided_to = clock_timestamp() - $2 * interval '1 second',"
            " next_at = date_trunc('minute', clock_timestamp()) - $2 * interval '1 second',"
            " wake_at = clock_timestamp() - $2 * interval '1 second' WHERE id = $1",
            UUID(schedule["id"]),
            seconds,
        )

    async def come_due(self, schedule: dict[str, Any], at: datetime) -> None:
        """Let one occurrence be due, and none before or soon after it."""
        cron = f"{at.second} {at.minute} {at.hour} {at.day} {at.month} *"
        edited = await self.patch(f"/{schedule['id']}", {"cron": cron})
        assert edited.status == 200, edited.body
        await self.api.database.fetch(
            "UPDATE schedules SET decided_to = $2::timestamptz - interval '1 second',"
            " next_at = $2, wake_at = $2 WHERE id = $1",
            UUID(schedule["id"]),
            at,
        )

    async def decide(self) -> DecidedSchedules:
        """Everything that is due now."""
        due = await self.schedules.due(range(PARTITIONS), until=4e9, limit=1000)
        return await self.schedules.fire(self.ownership, due)

    async def tasks(self, schedule: dict[str, Any]) -> list[dict[str, Any]]:
        answer = await self.api.admin.get(f"/v1/tasks?schedule_id={schedule['id']}&limit=1000")
        found: list[dict[str, Any]] = answer.json()["items"]
        return found[::-1]

    async def run_housekeeping(self) -> None:
        """A round of housekeeping, as one node of the cluster does it every minute."""
        state = NodeState(mock.Mock(), mock.Mock())
        housekeeper = Housekeeper(state, HousekeepingStore(self.api.database))
        await housekeeper.tidy()
        await housekeeper.retire()
        await housekeeper.leave()

    async def finish(self, count: int | None = None) -> None:
        """Let the oldest unfinished tasks end."""
        await self.api.database.fetch(
            "DELETE FROM tasks WHERE id IN (SELECT id FROM tasks ORDER BY id LIMIT $1)", count
        )


@pytest.fixture
async def schedule_api(database_url: str) -> AsyncIterator[ScheduleApi]:
    timezones.use_pinned()
    async with open_api(database_url, Config()) as api:
        node = uuid4()
        await api.database.fetch(
            "INSERT INTO nodes (id, name, version) VALUES ($1, 'one', '0')", node
        )
        now = await api.database.fetch("SELECT extract(epoch FROM clock_timestamp())::float8")
        occurrence_writer = OccurrenceWriter(TaskIds(Random(5)), Random(5), near=30)
        ownership = Ownership(node, 1, frozenset(range(PARTITIONS)))
        assert now
        yield ScheduleApi(api, ScheduleService(api.database, occurrence_writer), ownership)


# --- what it says -------------------------------------------------------------------------------


async def test_a_schedule_reads_as_it_was_written(schedule_api: ScheduleApi) -> None:
    fields = {
        "cron": "0 8 * * MON-FRI",
        "timezone": "Europe/Berlin",
        "end_at": "2037-12-31T00:00:00Z",
        "misfire": {"policy": "all", "window": 60.0, "cap": 7},
        "overlap": "queue",
        "max_running": 2,
        "dst": {"gap": "skip", "repeat": "both"},
        "exclude": ["2026-12-25"],
    }
    made = await schedule_api.make(**fields)
    assert {name: made[name] for name in fields} == fields
    assert made["description"] == "At 08:00, Monday through Friday, Europe/Berlin time."
    assert made["state"] == "active"
    assert made["runs"] == 0
    read = await schedule_api.get(f"/{made['id']}")
    assert read == made
    listed = await schedule_api.get("?limit=1")
    assert listed["items"] == [made]
    upcoming = await schedule_api.get(f"/{made['id']}/upcoming?n=3")
    assert upcoming["times"][0] == made["next_run_at"]
    assert len(upcoming["times"]) == 3


async def test_durations_may_be_written_in_two_ways(schedule_api: ScheduleApi) -> None:
    fields = {
        "interval": "PT1H",
        "jitter": "PT1M",
        "spread": "PT30S",
        "misfire": {"policy": "all", "window": "P1D"},
        "task": {**NOOP, "timeout": "PT1M", "sla": "PT2M", "retry": {"initial": "PT3M"}},
    }
    made = await schedule_api.make(**fields)
    assert (made["interval"], made["jitter"], made["spread"]) == (3600, 60, 30)
    assert made["misfire"] == {"policy": "all", "window": 86400, "cap": 100}
    task = made["task"]
    assert (task["timeout"], task["sla"], task["retry"]["initial"]) == (60, 120, 180)
    changed = await schedule_api.api.admin.call("PATCH", f"{URL}/{made['id']}", {"jitter": "PT2M"})
    assert (changed.json()["jitter"], changed.json()["spread"]) == (120, 30)
    wrong = {"jitter": "P2D", "spread": "soon", "misfire": {"window": "P400D"}}
    answer = await schedule_api.post(
        "", {"name": "bad", "cron": "* * * * *", "task": NOOP, **wrong}
    )
    assert answer.pointers() == ["/jitter", "/spread", "/misfire/window"]


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"cron": "0 0 31 2 *"}, "/cron"),
        ({"cron": "nonsense"}, "/cron"),
        ({}, "/cron"),
        ({"cron": "* * * * *", "interval": 60}, "/interval"),
        ({"interval": 0.5}, "/interval"),
        ({"rrule": "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"}, "/rrule"),
        ({"cron": "* * * * *", "timezone": "Mars/Base"}, "/timezone"),
        ({"cron": "* * * * *", "end_at": "2020-01-01T00:00:00Z"}, "/end_at"),
        ({"cron": "* * * * *", "calendars": ["missing"]}, "/calendars/0"),
        ({"cron": "* * * * *", "exclude": ["2026-02-30"]}, "/exclude/0"),
        ({"cron": "* * * * *", "overlap": "sometimes"}, "/overlap"),
        (
            {
                "cron": "* * * * *",
                "overlap": "queue",
                "task": {**NOOP, "concurrency": {"key": "k"}},
            },
            "/task/concurrency",
        ),
        (
            {"cron": "* * * * *", "task": {"target": {"type": "http", "url": "nowhere"}}},
            "/task/target/url",
        ),
    ],
)
async def test_nonsense_is_a_422_with_a_pointer(
    schedule_api: ScheduleApi, fields: dict[str, Any], pointer: str
) -> None:
    answer = await schedule_api.post("", {"name": "bad", "task": NOOP, **fields})
    assert answer.status == 422, answer.body
    assert pointer in answer.pointers()
    assert (await schedule_api.get(""))["items"] == []


@pytest.mark.parametrize(
    ("fields", "pointers"),
    [
        (
            {"cron": "nonsense", "max_running": 0, "timezone": "Mars/Base", "calendars": ["x"]},
            ["/max_running", "/calendars/0", "/timezone", "/cron"],
        ),
        (
            {"cron": "* * * * *", "task": {"target": {"type": "http", "url": "x"}, "priority": 99}},
            ["/task/priority", "/task/target/url"],
        ),
        # What is missing only because it cannot be read is not missed.
        ({"interval": "x" * 65, "jitter": "P2D"}, ["/interval", "/jitter"]),
        (
            {"cron": "* * * * *", "task": {"target": 1, "timeout": "x"}},
            ["/task/target", "/task/timeout"],
        ),
        ({"cron": "* * * * *", "task": None, "workflow": "a b"}, ["/workflow"]),
        ({"cron": "* * * * *", "task": 5, "workflow": "none"}, ["/task", "/workflow"]),
        ({"name": "", "cron": "0 0 31 2 *"}, ["/name", "/cron"]),
    ],
)  # fmt: skip
async def test_a_wrong_shape_hides_no_wrong_value(
    schedule_api: ScheduleApi, fields: dict[str, Any], pointers: list[str]
) -> None:
    answer = await schedule_api.post("", {"name": "bad", "task": NOOP, **fields})
    assert (answer.status, answer.pointers()) == (422, pointers)
    made = await schedule_api.make(cron="0 0 * * *")
    body = {"name": "bad", "task": NOOP, **fields}
    answer = await schedule_api.api.admin.call("PUT", f"{URL}/{made['id']}", body)
    assert (answer.status, answer.pointers()) == (422, pointers)


async def test_known_mistakes_are_reported_without_the_database(
    schedule_api: ScheduleApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> NoReturn:
        raise StoreUnavailable("the database is away")

    monkeypatch.setattr(CalendarStore, "dates", away)
    answer = await schedule_api.post(
        "", {"name": "s", "task": NOOP, "cron": "* * * * *", "jitter": []}
    )
    assert (answer.status, answer.pointers()) == (422, ["/jitter"])


async def test_what_never_fires_is_refused_at_once(schedule_api: ScheduleApi) -> None:
    body = {"name": "never", "cron": "0 0 31 2 *", "task": NOOP}
    await schedule_api.post("", body)  # the first request opens connections
    took = []
    for _ in range(5):
        began = perf_counter()
        assert (await schedule_api.post("", body)).status == 422
        took.append(perf_counter() - began)
    assert min(took) < 0.01


async def test_names_are_unique(schedule_api: ScheduleApi) -> None:
    await schedule_api.make(name="one", interval=60)
    taken = await schedule_api.post("", {"name": "one", "interval": 60, "task": NOOP})
    assert taken.status == 409
    other = await schedule_api.make(name="two", interval=60)
    assert (await schedule_api.patch(f"/{other['id']}", {"name": "one"})).status == 409


async def test_a_preview_shows_times_and_warnings(schedule_api: ScheduleApi) -> None:
    body = {
        "cron": "30 2 * * *",
        "timezone": "Europe/Berlin",
        "start_at": "2037-03-28T00:00:00Z",
    }
    shown = (await schedule_api.post("/preview?n=3&after=2037-03-01T00:00:00Z", body)).json()
    assert shown["times"] == [
        "2037-03-28T01:30:00Z",
        "2037-03-29T01:00:00Z",
        "2037-03-30T00:30:00Z",
    ]
    assert any("does not exist" in warning for warning in shown["warnings"])
    assert shown["tzdata"] == timezones.version()
    never = (await schedule_api.post("/preview", {"cron": "0 0 31 2 *"})).json()
    assert never["times"] == []
    assert "never fires" in never["warnings"][0]


async def test_dry_runs_change_nothing_and_show_the_difference(schedule_api: ScheduleApi) -> None:
    unsaved = await schedule_api.post("?dry_run=true", {"name": "x", "interval": 60, "task": NOOP})
    assert unsaved.status == 200
    assert len(unsaved.json()["fire_times"]["added"]) == 100
    assert (await schedule_api.get(""))["items"] == []
    made = await schedule_api.make(cron="0 * * * *")
    answer = await schedule_api.patch(f"/{made['id']}?dry_run=true", {"cron": "0,30 * * * *"})
    shown = answer.json()["fire_times"]
    assert shown["removed"] == []
    assert shown["kept"] == 50
    assert len(shown["added"]) == 50
    assert (await schedule_api.get(f"/{made['id']}"))["cron"] == "0 * * * *"


async def test_edits_respect_if_match(schedule_api: ScheduleApi) -> None:
    made = await schedule_api.make(interval=60)
    path = f"/{made['id']}"
    assert (await schedule_api.patch(path, {"interval": 90}, if_match='"2"')).status == 412
    edited = await schedule_api.patch(path, {"interval": 90}, if_match='"1"')
    assert edited.status == 200
    assert edited.headers["etag"] == '"2"'
    assert edited.json()["interval"] == 90
    to_cron = (await schedule_api.patch(path, {"cron": "@daily"})).json()
    assert (to_cron["cron"], to_cron["interval"]) == ("@daily", None)
    body = {"name": "new", "rrule": "FREQ=DAILY", "task": NOOP}
    put = await schedule_api.api.admin.call("PUT", URL + path, body)
    assert (put.json()["rrule"], put.json()["cron"], put.json()["name"]) == (
        "FREQ=DAILY",
        None,
        "new",
    )


async def test_calendars_exclude_dates(schedule_api: ScheduleApi) -> None:
    today = datetime.now(UTC).date().isoformat()
    api = schedule_api.api.admin
    made = await api.post("/v1/calendars", {"name": "h", "dates": [today]})
    assert made.status == 201
    assert (await api.post("/v1/calendars", {"name": "h", "dates": []})).status == 409
    schedule = await schedule_api.make(cron="* * * * * *", calendars=["h"], timezone="UTC")
    assert schedule["next_run_at"][:10] > today
    await schedule_api.outage(schedule, 10)
    await schedule_api.decide()
    decisions = {decision for decision, _ in await schedule_api.ledger(schedule)}
    assert decisions <= {"skipped_excluded", "skipped_misfire", "coalesced"}
    assert "skipped_excluded" in decisions
    assert (await api.call("DELETE", "/v1/calendars/h")).status == 409
    put = await api.call("PUT", "/v1/calendars/h", {"dates": ["2020-01-01"]})
    assert put.json()["dates"] == ["2020-01-01"]
    assert (await api.get("/v1/calendars")).json()["items"][0]["name"] == "h"
    await api.call("DELETE", f"{URL}/{schedule['id']}")
    assert (await api.call("DELETE", "/v1/calendars/h")).status == 204


# --- what it does -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "fired"), [("skip", range(2)), ("latest", range(1, 2)), ("all", range(119, 122))]
)
async def test_two_hours_of_outage(schedule_api: ScheduleApi, policy: str, fired: range) -> None:
    schedule = await schedule_api.make(
        cron="* * * * *",
        overlap="allow",
        misfire={"policy": policy, "window": 8000, "cap": 500},
    )
    await schedule_api.outage(schedule, 7200)
    decided = await schedule_api.decide()
    assert len(decided.made) in fired
    tasks = await schedule_api.tasks(schedule)
    nominal = [task["nominal_at"] for task in tasks]
    assert nominal == sorted(set(nominal)), "in order, each once"
    assert sum(count for _, count in await schedule_api.ledger(schedule)) in range(119, 122)
    assert (await schedule_api.decide()).decided == 0, "all is decided"
    read = await schedule_api.get(f"/{schedule['id']}")
    assert read["runs"] == len(tasks)
    assert read["last_run_at"] == (nominal[-1] if nominal else None)


async def test_overlap_policies_with_a_slow_run(schedule_api: ScheduleApi) -> None:
    policies = ("allow", "skip", "queue", "cancel_running")
    once = "0 0 1 1 *"
    made = {
        policy: await schedule_api.make(cron=once, overlap=policy, max_running=1)
        for policy in policies
    }
    now = datetime.now(UTC).replace(microsecond=0)
    for seconds_ago in (30, 20, 10):
        for schedule in made.values():
            await schedule_api.come_due(schedule, now - timedelta(seconds=seconds_ago))
        decided = await schedule_api.decide()
        assert decided.decided == 4
    ledgers = {policy: await schedule_api.ledger(schedule) for policy, schedule in made.items()}
    assert [d for d, _ in ledgers["allow"]] == ["fired"] * 3
    assert [d for d, _ in ledgers["skip"]] == ["fired"] + ["skipped_overlap"] * 2
    assert [d for d, _ in ledgers["queue"]] == ["fired"] * 3
    assert [d for d, _ in ledgers["cancel_running"]] == ["fired"] * 3
    states = [task["state"] for task in await schedule_api.tasks(made["cancel_running"])]
    assert states == ["cancelled", "cancelled", "scheduled"]
    queued = await schedule_api.tasks(made["queue"])
    assert {task["concurrency"]["limit"] for task in queued} == {1}


async def test_pausing_leaves_a_line_for_what_passed(schedule_api: ScheduleApi) -> None:
    schedule = await schedule_api.make(cron="* * * * * *", overlap="allow")
    paused = await schedule_api.post(f"/{schedule['id']}/pause")
    assert paused.json()["state"] == "paused"
    assert paused.json()["next_run_at"] is None
    assert (await schedule_api.post(f"/{schedule['id']}/pause")).status == 200, "twice is harmless"
    await schedule_api.outage(schedule, 60)
    assert (await schedule_api.decide()).decided == 0
    resumed = await schedule_api.post(f"/{schedule['id']}/resume")
    assert resumed.json()["state"] == "active"
    [count] = [
        n for decision, n in await schedule_api.ledger(schedule) if decision == "skipped_paused"
    ]
    assert count in range(60, 70), "some more seconds may have passed"


async def test_an_edit_settles_what_was_due_by_the_old_definition(
    schedule_api: ScheduleApi,
) -> None:
    schedule = await schedule_api.make(
        cron="* * * * *", overlap="allow", misfire={"policy": "all", "window": 8000, "cap": 500}
    )
    await schedule_api.outage(schedule, 600)
    edited = await schedule_api.patch(f"/{schedule['id']}", {"cron": "0 0 1 1 *"})
    assert edited.status == 200
    tasks = await schedule_api.tasks(schedule)
    assert len(tasks) in range(9, 12), "what had come due is run"
    assert all(task["nominal_at"].endswith(":00Z") for task in tasks)
    assert edited.json()["next_run_at"].endswith("-01-01T00:00:00Z")


async def test_a_deleted_schedule_fires_no_more(schedule_api: ScheduleApi) -> None:
    schedule = await schedule_api.make(cron="* * * * * *")
    await schedule_api.outage(schedule, 10)
    due = await schedule_api.schedules.due(range(PARTITIONS), until=4e9, limit=10)
    gone = await schedule_api.api.admin.call("DELETE", f"{URL}/{schedule['id']}")
    assert gone.status == 204
    assert (await schedule_api.schedules.fire(schedule_api.ownership, due)).made == []
    assert await schedule_api.tasks(schedule) == []


async def test_a_node_of_an_older_epoch_decides_nothing(schedule_api: ScheduleApi) -> None:
    schedule = await schedule_api.make(cron="* * * * * *")
    await schedule_api.outage(schedule, 10)
    due = await schedule_api.schedules.due(range(PARTITIONS), until=4e9, limit=10)
    await schedule_api.api.database.fetch("UPDATE nodes SET epoch = epoch + 1")
    assert (await schedule_api.schedules.fire(schedule_api.ownership, due)).decided == 0
    assert await schedule_api.ledger(schedule) == []


async def test_run_now_is_beside_the_timetable(schedule_api: ScheduleApi) -> None:
    schedule = await schedule_api.make(
        interval=3600, task={**NOOP, "payload": {"id": "{{schedule_id}}", "n": "{{occurrence}}"}}
    )
    answer = await schedule_api.post(f"/{schedule['id']}/run")
    assert answer.status == 201
    task = answer.json()
    assert task["schedule_id"] == schedule["id"]
    assert task["payload"] == {"id": schedule["id"], "n": 1}
    assert await schedule_api.ledger(schedule) == []
    assert (await schedule_api.get(f"/{schedule['id']}"))["next_run_at"] == schedule["next_run_at"]


async def test_a_backfill_makes_up_for_what_never_ran(schedule_api: ScheduleApi) -> None:
    schedule = await schedule_api.make(cron="0 0 * * *", exclude=["2026-03-03"])
    body = {"from": "2026-03-01T00:00:00Z", "to": "2026-03-05T00:00:00Z", "max_running": 2}
    answer = await schedule_api.post(f"/{schedule['id']}/backfill", body)
    assert answer.status == 201, answer.body
    assert answer.json()["count"] == 4
    tasks = await schedule_api.tasks(schedule)
    assert [task["nominal_at"][:10] for task in tasks] == [
        f"2026-03-0{day}" for day in (1, 2, 4, 5)
    ]
    assert {task["concurrency"]["limit"] for task in tasks} == {2}
    due = [task["due_at"] for task in tasks]
    assert due == sorted(set(due)), "in the order of their times"
    assert all(task["due_at"] >= task["created_at"] for task in tasks), "nothing is years late"
    again = await schedule_api.post(f"/{schedule['id']}/backfill", body)
    assert again.json()["count"] == 0, "what ran does not run again"
    assert await schedule_api.ledger(schedule) == [("backfilled", 1)] * 4
    wrong = {"from": "2026-03-05T00:00:00Z", "to": "2026-03-01T00:00:00Z"}
    assert (await schedule_api.post(f"/{schedule['id']}/backfill", wrong)).pointers() == ["/to"]


@pytest.mark.parametrize("day", ["2019-03-0{}", "2026-03-0{}"])
async def test_a_backfill_is_remembered_however_old(schedule_api: ScheduleApi, day: str) -> None:
    schedule = await schedule_api.make(cron="0 0 * * *")
    body = {"from": f"{day.format(1)}T00:00:00Z", "to": f"{day.format(3)}T00:00:00Z"}
    counts = []
    for _ in range(3):
        counts.append(
            (await schedule_api.post(f"/{schedule['id']}/backfill", body)).json()["count"]
        )
        await schedule_api.run_housekeeping()
    assert counts == [3, 0, 0], "what was decided stays decided"
    found = await schedule_api.get(f"/{schedule['id']}/occurrences?limit=2&decision=backfilled")
    rest = await schedule_api.get(
        f"/{schedule['id']}/occurrences?limit=2&decision=backfilled&cursor={found['next_cursor']}"
    )
    times = [line["nominal_at"][:10] for line in (*found["items"], *rest["items"])]
    assert times == [day.format(n) for n in (3, 2, 1)], "and is found, page by page"


async def test_spread_shows_both_times(schedule_api: ScheduleApi) -> None:
    schedule = await schedule_api.make(cron="0 0 * * *", spread=600)
    upcoming = await schedule_api.get(f"/{schedule['id']}/upcoming?n=2")
    nominal, due = (
        [datetime.fromisoformat(item[name]).timestamp() for item in upcoming["items"]]
        for name in ("nominal_at", "due_at")
    )
    shares = {later - at for later, at in zip(due, nominal, strict=True)}
    assert len(shares) == 1, "always the same for one schedule"
    assert 0 < shares.pop() < 600


async def test_a_new_tz_database_moves_the_future_only(schedule_api: ScheduleApi) -> None:
    schedule = await schedule_api.make(cron="0 12 * * *", timezone="Europe/Berlin")
    await schedule_api.api.database.fetch(
        "UPDATE schedules SET tzdata = '1999a', next_at = next_at + interval '3 hours',"
        " wake_at = wake_at + interval '3 hours'"
    )
    assert await schedule_api.schedules.retime(range(PARTITIONS), limit=10) == 1
    assert await schedule_api.schedules.retime(range(PARTITIONS), limit=10) == 0
    read = await schedule_api.get(f"/{schedule['id']}")
    assert read["next_run_at"] == schedule["next_run_at"]


async def test_a_new_tz_database_keeps_what_was_decided(schedule_api: ScheduleApi) -> None:
    schedule = await schedule_api.make(cron="* * * * *", overlap="allow")
    await schedule_api.outage(schedule, 180)
    await schedule_api.decide()
    before = await schedule_api.get(f"/{schedule['id']}/occurrences")
    await schedule_api.api.database.fetch("UPDATE schedules SET tzdata = '1999a'")
    cluster = (await schedule_api.api.operator.get("/v1/cluster")).json()
    assert cluster["schedules"]["outdated"] == 1
    assert await schedule_api.schedules.retime(range(PARTITIONS), limit=10) == 1
    assert await schedule_api.get(f"/{schedule['id']}/occurrences") == before
    assert (await schedule_api.decide()).decided == 0, "nothing is due once more"
    await schedule_api.api.database.fetch(
        "UPDATE schedules SET tzdata = '1999a', state = 'ended', next_at = NULL, wake_at = NULL"
    )
    cluster = (await schedule_api.api.operator.get("/v1/cluster")).json()
    assert cluster["schedules"]["outdated"] == 0, "what has ended need not be worked out again"


async def test_decisions_name_their_tz_database(schedule_api: ScheduleApi) -> None:
    """Beside a newer node an older one computes by its own: the newer one must find that."""
    schedule = await schedule_api.make(cron="* * * * *")
    await schedule_api.api.database.fetch("UPDATE schedules SET tzdata = '9999z'")
    await schedule_api.outage(schedule, 60)
    assert (await schedule_api.decide()).decided == 1
    [row] = await schedule_api.api.database.fetch("SELECT tzdata FROM schedules")
    assert row["tzdata"] == timezones.version()


async def test_overdue_schedules_are_found(schedule_api: ScheduleApi) -> None:
    schedule = await schedule_api.make(cron="* * * * *")
    assert await schedule_api.schedules.overdue(10) == (0, None)
    await schedule_api.outage(schedule, 300)
    count, since = await schedule_api.schedules.overdue(10)
    assert count == 1
    assert since is not None
    assert (await schedule_api.get(f"/{schedule['id']}"))["overdue"] is True
    punctual = await schedule_api.make(interval=3600)
    standing = (await schedule_api.get("?overdue=true"))["items"]
    assert [item["id"] for item in standing] == [schedule["id"]]
    assert len((await schedule_api.get("?overdue=false"))["items"]) == 2
    assert (await schedule_api.api.admin.get(f"{URL}?overdue=maybe")).status == 422
    cluster = (await schedule_api.api.operator.get("/v1/cluster")).json()
    assert cluster["tzdata"] == timezones.version()
    assert cluster["schedules"]["overdue"] == 1
    assert cluster["schedules"]["overdue_since"] is not None
    assert punctual["overdue"] is False
    await schedule_api.api.admin.post(f"{URL}/{schedule['id']}/pause")
    await schedule_api.outage(schedule, 300)
    cluster = (await schedule_api.api.operator.get("/v1/cluster")).json()
    assert cluster["schedules"]["overdue"] == 0, "what is paused need not be on time"


async def test_each_overdue_time_is_reported_once(schedule_api: ScheduleApi) -> None:
    schedule = await schedule_api.make(cron="* * * * *")
    assert await schedule_api.schedules.report_overdue(10, limit=100) == []
    await schedule_api.outage(schedule, 300)
    told = await asyncio.gather(
        *(schedule_api.schedules.report_overdue(10, limit=100) for _ in range(4))
    )
    assert sorted(told) == [[], [], [], [schedule["id"]]], "whichever node looks first"
    [event] = await schedule_api.api.database.fetch("SELECT tenant_id, kind, body FROM outbox")
    assert (event["tenant_id"], event["kind"]) == (
        schedule_api.api.tenants["a"],
        "schedule.overdue",
    )
    assert event["body"]["schedule_id"] == schedule["id"]
    assert event["body"]["name"] == schedule["name"]
    await schedule_api.decide()
    assert await schedule_api.schedules.report_overdue(10, limit=100) == []
    await schedule_api.outage(schedule, 200)
    assert await schedule_api.schedules.report_overdue(10, limit=100) == [schedule["id"]]


async def test_a_receiver_that_is_gone_ends_the_schedule(schedule_api: ScheduleApi) -> None:
    schedule = await schedule_api.make(cron="* * * * * *", overlap="allow", stop_on_410=True)
    await schedule_api.outage(schedule, 2)
    [made] = (await schedule_api.decide()).made
    await schedule_api.api.database.fetch(
        "INSERT INTO executions (task_id, due_at, picked_at, finished_at, tenant_id, fence,"
        " attempt, status_code, outcome, worker)"
        " VALUES ($1, now(), now(), clock_timestamp(), $2, 1, 1, 410,"
        " 'failed', 'w')",
        made.task.id,
        made.task.tenant_id,
    )
    await schedule_api.outage(schedule, 2)
    assert (await schedule_api.decide()).made == []
    assert (await schedule_api.get(f"/{schedule['id']}"))["state"] == "ended"
