"""Workflows declared in Python are the documents that the API takes."""

import json
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import msgspec
import pytest

import mainspring
from mainspring import App, Context, InvalidArguments
from mainspring.api.tasks.validation import TaskValidator
from mainspring.api.workflows.validation import WorkflowValidator
from mainspring.config import Config
from mainspring.domain.ids import TaskIds
from mainspring.domain.workflows.definition import WorkflowDefinition
from mainspring.sdk.workflow import INDEX, ITEM, Workflow
from mainspring.wire.workflows import WorkflowIn
from support.manual_clock import ManualClock


def nightly() -> Workflow:
    flow = mainspring.Workflow("nightly", on_failure="continue", deadline="PT2H", input={"day": 1})
    extract = flow.step(
        "extract", http=f"https://x.example/{flow.input.day}", payload={"day": flow.input.day}
    )

    @flow.step(
        needs=extract,
        foreach=extract.result.body.files,
        payload={"file": ITEM, "place": INDEX, "odd": [extract.result["odd key"][0]]},
        retry={"max_attempts": 2},
    )
    def clean(file: str) -> str:
        return file.upper()

    flow.step(
        "to-db",
        needs=[extract, clean, "extract2"],
        if_="steps.extract.result.body.rows > 0",
        command=["load", flow.input.day, "--from", clean.result],
    )
    flow.step("extract2", target={"type": "handler", "name": "extract"}, queue="night")
    flow.step("sweep", handler="sweep", cleanup=True)
    return flow


def test_a_workflow_as_a_document() -> None:
    assert nightly().definition() == {
        "name": "nightly",
        "on_failure": "continue",
        "deadline": "PT2H",
        "input": {"day": 1},
        "steps": [
            {
                "id": "extract",
                "target": {"type": "http", "url": "https://x.example/{{input.day}}"},
                "payload": {"day": "{{input.day}}"},
            },
            {
                "id": "clean",
                "needs": ["extract"],
                "target": {"type": "handler", "name": "clean"},
                "foreach": "{{steps.extract.result.body.files}}",
                "payload": {
                    "file": "{{item}}",
                    "place": "{{index}}",
                    "odd": ['{{steps.extract.result["odd key"][0]}}'],
                },
                "retry": {"max_attempts": 2},
            },
            {
                "id": "to-db",
                "needs": ["extract", "clean", "extract2"],
                "if": "steps.extract.result.body.rows > 0",
                "target": {
                    "type": "command",
                    "argv": ["load", "{{input.day}}", "--from", "{{steps.clean.result}}"],
                },
            },
            {
                "id": "extract2",
                "target": {"type": "handler", "name": "extract"},
                "queue": "night",
            },
            {"id": "sweep", "target": {"type": "handler", "name": "sweep"}, "cleanup": True},
        ],
    }


async def taken(flow: Workflow) -> WorkflowDefinition:
    """The workflow as the server has it."""
    tasks = TaskValidator(Config(), ManualClock(), TaskIds(Random(1)), Random(1))
    validator = WorkflowValidator(tasks, 2**20, 1e9)
    wanted = msgspec.json.decode(str(flow), type=WorkflowIn)
    return await validator.definition(wanted.name, wanted)


async def test_the_server_takes_it() -> None:
    made = await taken(nightly())
    assert made.by_id["to-db"].uses == ("clean", "extract")


def test_a_function_stays_a_function() -> None:
    clean = nightly().steps["clean"]
    assert clean("a") == "A"
    with pytest.raises(TypeError, match="was not declared by a function"):
        nightly().steps["sweep"]()


def letters() -> tuple[App, Workflow]:
    app, flow = App("letters"), Workflow("letters")

    @flow.step(priority=3, payload={"to": flow.input.to})
    @app.task(
        name="mail.send",
        queue="mail",
        timeout=300,
        retries=1,
        priority=9,
        max_concurrency=4,
        sla=60,
        labels={"team": "growth"},
        requires={"tags": ["smtp"]},
    )
    def send(ctx: Context, to: str) -> str:
        return f"{ctx.name}: {to}"

    return app, flow


async def test_what_a_task_declares_holds_for_its_step() -> None:
    _, flow = letters()
    (step,) = flow.definition()["steps"]
    assert step == {
        "id": "send",
        "target": {"type": "handler", "name": "mail.send"},
        "name": "mail.send",
        "queue": "mail",
        "timeout": 300,
        "retry": {"max_attempts": 2},
        "priority": 3,  # what the step says itself counts
        "concurrency": {"key": "task:mail.send", "limit": 4},
        "sla": 60,
        "labels": {"team": "growth"},
        "requires": {"tags": ["smtp"]},
        "payload": {"to": "{{input.to}}"},
    }
    assert (await taken(flow)).by_id["send"].id == "send"
    assert flow.steps["send"]("ann") == "mail.send: ann"


def test_a_step_and_a_task_of_the_same_function_are_sent_alike() -> None:
    app, flow = letters()
    (step,) = flow.definition()["steps"]
    sent = app.functions["mail.send"].with_options(priority=3).prepare("ann")
    del step["id"], step["payload"], sent["payload"]
    assert step == sent


def test_a_function_may_be_given_directly() -> None:
    app, flow = letters()
    send = app.functions["mail.send"]

    @app.task
    def fetch() -> None: ...

    def plain() -> None: ...

    sending = flow.steps["send"]
    again = flow.step("again", send, needs=sending, queue="slow", retry={"max_attempts": 9})
    flow.step(fetch, needs=again)
    flow.step(plain)
    flow.step("other", plain)
    flow.step(app.task(name="nameless")(partial(plain)))
    assert [(step["id"], step["target"]["name"]) for step in flow.definition()["steps"]] == [
        ("send", "mail.send"),
        ("again", "mail.send"),
        ("fetch", "fetch"),
        ("plain", "plain"),
        ("other", "plain"),
        ("nameless", "nameless"),
    ]
    (second, third, fourth) = flow.definition()["steps"][1:4]
    assert (second["needs"], second["queue"], second["timeout"]) == (["send"], "slow", 300)
    assert (second["retry"], second["priority"]) == ({"max_attempts": 9}, 9)
    assert third == {
        "id": "fetch",
        "needs": ["again"],
        "target": {"type": "handler", "name": "fetch"},
        "name": "fetch",
    }
    assert fourth == {"id": "plain", "target": {"type": "handler", "name": "plain"}}
    assert app.functions["fetch"] is fetch, "it is a task as before"


def test_a_decorator_may_be_used_twice() -> None:
    flow = Workflow("x")
    slow = flow.step(queue="slow")
    slow(letters)
    slow(nightly)
    assert [(s["id"], s["queue"]) for s in flow.definition()["steps"]] == [
        ("letters", "slow"),
        ("nightly", "slow"),
    ]


def test_a_step_is_no_task() -> None:
    app, flow = letters()
    for decorate in (app.task, app.task(queue="mail"), app.periodic(interval=60)):
        with pytest.raises(InvalidArguments, match="swap the two, @flow"):
            decorate(flow.steps["send"])
    assert list(app.functions) == ["mail.send"]


def test_what_is_no_function_for_a_step() -> None:
    app, flow = letters()
    send: Any = app.functions["mail.send"]
    sending: Any = flow.steps["send"]
    step: Any = flow.step
    mistakes: tuple[tuple[Callable[[], Any], str], ...] = (
        (lambda: step(send, "again"), "takes its name first, and then its function"),
        (lambda: step("again", sending), "'send' is a step already"),
        (lambda: step("again", handler=send), "takes a function after its name, not as handler"),
        (lambda: step("again", send, http="https://x.example"), "needs one of"),
        (lambda: step(7), "7 is no function with a name"),
        (lambda: step("again", "mail.send"), "'mail.send' is no function with a name"),
        (lambda: step("again", partial(letters)), "is no function with a name"),
    )
    for mistake, message in mistakes:
        with pytest.raises(TypeError, match=message):
            mistake()
    with pytest.raises(InvalidArguments, match="a step of a workflow has no expires_at"):
        step("again", send.with_options(expires_at="2027-01-01T00:00:00Z"))
    assert list(flow.steps) == ["send"]


def test_mistakes_are_raised_where_they_are_made() -> None:
    flow = Workflow("x")
    flow.step("a", handler="a")
    with pytest.raises(ValueError, match="has a step 'a' already"):
        flow.step("a", handler="a")
    with pytest.raises(TypeError, match="needs one of target, http, handler and command"):
        flow.step("b")
    with pytest.raises(TypeError, match="needs one of"):
        flow.step("b", handler="b", http="https://x.example")
    with pytest.raises(ValueError, match="cannot be referred to"):
        flow.input['"']
    assert json.loads(str(flow))["steps"] == [
        {"id": "a", "target": {"type": "handler", "name": "a"}}
    ]
