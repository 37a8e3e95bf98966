"""What can be wrong with a workflow: all of it is found, and message where it stands."""

from collections.abc import Callable
from random import Random
from time import process_time
from typing import Any

import msgspec
import pytest

from mainspring.api.http.decoding import decode_as
from mainspring.api.tasks.validation import TaskValidator
from mainspring.api.workflows.validation import WorkflowValidator
from mainspring.config import Config
from mainspring.domain.ids import TaskIds
from mainspring.domain.workflows.definition import WorkflowDefinition
from mainspring.errors import InvalidRequest, TooLarge
from mainspring.wire.workflows import WorkflowIn
from support.manual_clock import ManualClock

NOOP = {"type": "handler", "name": "mainspring.noop"}


def step(name: str, *needs: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "needs": list(needs), "target": NOOP, **fields}


def workflow(*steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"name": "nightly", "steps": list(steps), **fields}


async def defined(document: object, config: Config | None = None) -> WorkflowDefinition:
    """As POST /v1/workflows does it."""
    config = config or Config()
    tasks = TaskValidator(config, ManualClock(), TaskIds(Random(1)), Random(1))
    validator = WorkflowValidator(tasks, config.max_payload, config.horizon)
    body = document if isinstance(document, bytes) else msgspec.json.encode(document)
    wanted = decode_as(WorkflowIn, body, lambda w: [s.payload for s in w.steps])
    return await validator.definition(wanted.name, wanted)


async def errors(document: object, config: Config | None = None) -> dict[str, str]:
    """What is wrong, by pointer."""
    with pytest.raises((InvalidRequest, TooLarge)) as caught:
        await defined(document, config)
    return {problem.pointer: problem.detail for problem in caught.value.problems}


async def test_all_mistakes_are_reported_at_once() -> None:
    found = await errors(
        workflow(
            step("a", "c"),
            step("b", "a"),
            step("c", "b"),
            step("behind", "c"),
            step("twice"),
            step("twice"),
            step("lost", "nowhere", "twice", "twice"),
            step("never", when="any_failed"),
            step("tidy", "twice", cleanup=True, when="any_failed"),
            step("after", "tidy"),
            step("speaks", "twice", payload={"x": "{{steps.behind2.result}}"}),
            step("odd", **{"if": "steps.twice.result + 1 > 0"}),
            step("each", foreach="{{input.files}} and more"),
            step("alone", payload={"x": ["{{item}}"]}),
            step("slow", delay="P1Y"),
            step("long", delay="P99999W"),
            deadline="PT0S",
        ),
    )
    assert found["/steps/0/needs"] == "is part of a cycle: a → b → c → a"
    assert "unreachable" in found["/steps/3"]
    assert found["/steps/5/id"] == "'twice' is the id of step 4 already"
    assert found["/steps/6/needs/0"] == "there is no step 'nowhere'"
    assert found["/steps/6/needs/2"] == "'twice' is named twice"
    assert "can never be met" in found["/steps/7/when"]
    assert "however" in found["/steps/8/when"]
    assert "only cleanup steps" in found["/steps/9/needs/0"]
    assert found["/steps/10/payload"] == "speaks of the step 'behind2', which is not there"
    assert "there is no + here" in found["/steps/11/if"]
    assert "neither a list nor the template of one" in found["/steps/12/foreach"]
    assert "foreach" in found["/steps/13/payload"]
    assert "ISO 8601" in found["/steps/14/delay"]
    assert "too long" in found["/steps/15/delay"]
    assert "longer than zero" in found["/deadline"]


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"payload": {"x": "{{steps.other.result.y}}"}}, "/payload"),
        ({"payload": {"deep": [{"x": "a {{ steps.other.result }} b"}]}}, "/payload"),
        ({"payload": {"x": "\u007b{steps.other.result}}"}}, "/payload"),
        ({"name": "{{steps.other.state}}"}, "/name"),
        ({"labels": {"l/~": "{{steps.other.result.x}}"}}, "/labels/l~1~0"),
        ({"concurrency": {"key": "k-{{steps.other.result}}"}}, "/concurrency/key"),
        ({"foreach": "{{steps.other.result}}"}, "/foreach"),
        ({"foreach": [1, "{{steps.other.result}}"]}, "/foreach"),
        ({"if": "steps.other.result.ok"}, "/if"),
        ({"if": 'steps["other"].state == "completed"'}, "/if"),
        (
            {"target": {"type": "http", "url": "https://x.example/{{steps.other.result}}"}},
            "/target/url",
        ),
        (
            {
                "target": {
                    "type": "http",
                    "url": "https://x.example",
                    "headers": {"X-A": "{{steps.other.result}}"},
                }
            },
            "/target/headers/X-A",
        ),
        (
            {"target": {"type": "command", "argv": ["x", "{{steps.other.error.code}}"]}},
            "/target/argv/1",
        ),
    ],
)
async def test_what_is_not_upstream_cannot_be_spoken_of(
    fields: dict[str, Any], pointer: str
) -> None:
    apart = workflow(step("first"), step("other"), {**step("here", "first"), **fields})
    found = await errors(apart)
    assert list(found) == [f"/steps/2{pointer}"]
    assert "not upstream of 'here'" in found[f"/steps/2{pointer}"]
    behind = workflow(step("other"), step("first", "other"), {**step("here", "first"), **fields})
    assert (await defined(behind)).by_id["here"].uses == ("other",), "needs of needs are upstream"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{}}", "does not begin with"),
        ("{{foo}}", "does not begin with"),
        ("{{inputs.x}}", "does not begin with"),
        ("{{input.}}", "cannot be read"),
        ("{{input..x}}", "cannot be read"),
        ("{{input['x']}}", "cannot be read"),
        ("{{input.x | upper}}", "cannot be read"),
        ("{{input.x", "hold no reference"),
        ("{{{{input.x}}}}", "hold no reference"),
        ("{{steps.first}}", "of a step there are"),
        ("{{steps.first.output}}", "of a step there are"),
        ("{{" * 1000, "hold no reference"),
        ("{{input." + "x" * 600 + "}}", "hold no reference"),
    ],
)
async def test_braces_that_mean_nothing_are_not_let_through(text: str, message: str) -> None:
    found = await errors(workflow(step("first"), step("a", "first", payload=[text])))
    assert list(found) == ["/steps/1/payload"]
    assert message in found["/steps/1/payload"]
    escaped = text.replace("{{", "\\{{")
    assert await defined(workflow(step("first"), step("a", "first", payload=[escaped])))


@pytest.mark.parametrize(
    "condition",
    [
        "",
        "input.x >",
        "1 + 1 == 2",
        "unknown == 1",
        "item == 1",
        "'text'",
        "steps.first",
        "steps.to-db.result",
        "input.list.map(x, x * 2) == []",
        "input.a.all(x, input.b.all(y, x == y))",
        "input.a.all(x, x in input.b)",
        ".input.x == 1",
        "r'a' == 'a'",
        "'''a''' == 'a'",
        "input.x == 1 // really",
        "(" * 200 + "true" + ")" * 200,
        "[" * 300 + "]" * 300,
        "input" + ".a" * 200 + " == 1",
        "!" * 1001,
        "\x00",
        "__import__('os').system('true') == 0",
    ],
)
async def test_conditions_that_are_none_are_refused(condition: str) -> None:
    found = await errors(workflow(step("first"), step("a", "first", **{"if": condition})))
    assert list(found) == ["/steps/1/if"]
    assert len(found["/steps/1/if"]) < 400


async def test_a_step_takes_the_fields_of_a_task_and_its_errors() -> None:
    found = await errors(
        workflow(
            step("times", run_at="2030-01-01T00:00:00Z"),
            step("bad", priority=10, retry={"max_attempts": 0}),
            step("a.b"),
            {"id": "none"},
            step("when", when="sometimes"),
        ),
    )
    assert set(found) == {
        "/steps/0/run_at",
        "/steps/1/priority",
        "/steps/1/retry/max_attempts",
        "/steps/2/id",
        "/steps/3",
        "/steps/4/when",
    }
    urls = ("ftp://x.example/{{input.x}}", "https://x.example:{{input.x}}/", "nonsense-{{input.x}}")
    steps = [step(f"s{n}", target={"type": "http", "url": url}) for n, url in enumerate(urls)]
    assert set(await errors(workflow(*steps))) == {
        f"/steps/{n}/target/url" for n in range(len(urls))
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [
        lambda size: [step(f"s{n}", *([f"s{n - 1}"] if n else [])) for n in range(size)],
        lambda size: [
            *(step(f"s{n}") for n in range(size - 1)),
            step("join", *(f"s{n}" for n in range(size - 1)), payload=all_of(size - 1)),
        ],
        lambda size: [
            step(f"s{n}", f"s{n // 2}", payload="{{steps.s0.result}}") if n else step("s0")
            for n in range(size)
        ],
    ],
    ids=["chain", "join", "tree"],
)
async def test_ten_thousand_steps_take_linear_time(
    shape: Callable[[int], list[dict[str, Any]]],
) -> None:
    took = {}
    for size, times in ((1_000, 5), (10_000, 2)):
        document = msgspec.json.encode(workflow(*shape(size)))
        spent = []
        for _ in range(times):
            begun = process_time()
            made = await defined(document)
            spent.append(process_time() - begun)
            assert len(made.order) == size
        took[size] = min(spent)
    assert took[10_000] < 5, took
    assert took[10_000] < 60 * took[1_000], f"{took}: were it quadratic, it would be 100 times"


def all_of(size: int) -> list[str]:
    return [f"{{{{steps.s{n}.result}}}}" for n in range(size)]


@pytest.mark.slow
async def test_ten_thousand_steps_and_no_more() -> None:
    parents = [step(f"s{n}") for n in range(10_000)]
    found = await errors(workflow(*parents, step("more")))
    assert found == {"/steps": "10001 steps; the most is 10000"}
    children = [step(f"t{n}", *(s["id"] for s in parents[:1000])) for n in range(101)]
    found = await errors(workflow(*parents[:1000], *children))
    assert found == {"/steps": "101000 needs in all; the most is 100000"}
    ring = [step(f"s{n}", f"s{(n + 1) % 9999}") for n in range(9_999)]
    found = await errors(workflow(*ring))
    assert list(found) == ["/steps/0/needs"]
    assert found["/steps/0/needs"].endswith("→ s0 (9999 steps)")


async def test_hostile_sizes_are_refused() -> None:
    config = Config(max_payload=1000)
    long = "y" * 1001
    found = await errors(workflow(step("c", foreach=[0] * 10_001)))
    assert list(found) == ["/steps/0/foreach"]
    found = await errors(
        workflow(step("a", payload={"x": long}), step("b", foreach=[long]), input={"x": long}),
        config,
    )
    assert set(found) == {"/steps/0/payload", "/steps/1/foreach", "/input"}
    deep: object = 0
    for _ in range(100):
        deep = [deep]
    found = await errors(
        workflow(step("a", payload=deep), step("b", foreach=deep), input={"x": deep}), config
    )
    assert set(found) == {"/steps/0/payload", "/steps/1/foreach", "/input"}
    many = await errors(workflow(*(step(f"s{n}", "gone") for n in range(5000))))
    assert len(many) == 100
    twice = b'{"name": "a", "steps": [{"id": "a", "id": "b", "target": %s}]}'
    assert "given twice" in (await errors(twice % msgspec.json.encode(NOOP)))[""]


async def test_durations_may_be_written_in_two_ways() -> None:
    texts = {"timeout": "PT1M", "jitter": "PT2S", "delay": "PT1H", "retry": {"initial": "PT3S"}}
    numbers = {"timeout": 60, "jitter": 2, "delay": 3600, "retry": {"initial": 3}}
    given = await defined(workflow(step("a", **texts), deadline="P1D"))
    assert given == await defined(workflow(step("a", **numbers), deadline=86400))
    found = await errors(workflow(step("a", timeout="P2D", jitter="PT"), step("b", sla="P999D")))
    assert found.keys() == {"/steps/0/timeout", "/steps/0/jitter", "/steps/1/sla"}
