"""Workflows declared in Python are the documents that the API takes."""

import json
from random import Random

import msgspec
import pytest

import mainspring
from mainspring.api.validation import TaskValidator
from mainspring.api.workflow_validation import WorkflowValidator
from mainspring.api.workflow_wire import WorkflowIn
from mainspring.clock import ManualClock
from mainspring.config import Config
from mainspring.domain.ids import TaskIds
from mainspring.domain.workflow import Definition
from mainspring.sdk.workflow import INDEX, ITEM, Workflow


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


async def test_the_server_takes_it() -> None:
    tasks = TaskValidator(Config(), ManualClock(), TaskIds(Random(1)), Random(1))
    validator = WorkflowValidator(tasks, 2**20, 1e9)
    wanted = msgspec.json.decode(str(nightly()), type=WorkflowIn)
    made = await validator.definition(wanted.name, wanted)
    assert isinstance(made, Definition)
    assert made.by_id["to-db"].uses == ("clean", "extract")


def test_a_function_stays_a_function() -> None:
    clean = nightly().steps["clean"]
    assert clean("a") == "A"
    with pytest.raises(TypeError, match="was not declared by a function"):
        nightly().steps["sweep"]()


def test_mistakes_are_told_where_they_are_made() -> None:
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
