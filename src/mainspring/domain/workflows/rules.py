"""The rules of what a run does next: pure functions of the definition and of the steps' ends.

`decide` says whether a step starts, `condition_met` evaluates its condition, `items` and `render`
make its tasks, `foreach_state` joins the tasks of a foreach, `run_state` is that of the whole run.

A step counts as *succeeded* when it completed, as *skipped* when it was not taken, and as *failed*
when it ended in any other way: failed, cancelled or expired.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal
from urllib.parse import quote

from mainspring.domain.schedules.template import rewrite
from mainspring.domain.task import UNFINISHED, TaskState
from mainspring.domain.urls import url_problem
from mainspring.domain.workflows import condition as conditions
from mainspring.domain.workflows.definition import MOST_ITEMS, RunState, Step, TaskTemplate
from mainspring.domain.workflows.reference import BadReference, Reference, parts, whole

MOST_BYTES = 2**20
"""Maximum bytes of a rendered payload, by default."""
MOST_NESTING = 200
"""Maximum nesting of a value that is filled in; payloads and results have 64 levels at most."""
MOST_FAN_BYTES = 2**26
"""Maximum bytes of the payloads of one foreach together."""


class StepDecision(StrEnum):
    """The decision about a step."""

    WAIT = "wait"
    START = "start"
    SKIP = "skip"


class RenderFailed(ValueError):
    """A template cannot be filled in, for example because it refers to a missing value."""


RunEnd = Literal["cancelled", "deadline"]
"""What ended a run before its time: a caller, or its deadline."""

_NOTHING = object()
_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "a truth value",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
}
_LOST = (TaskState.FAILED, TaskState.CANCELLED, TaskState.EXPIRED)


# Which steps start --------------------------------------------------------------------------------


def decide(
    step: Step, finished: int, succeeded: int, failed: int, skipped: int, needed: int
) -> StepDecision:
    """Return what becomes of a step, given how many of the `needed` steps before it ended, and how.

    A step starts as soon as its `when` is met, and is skipped when all before it have ended and it
    was not. So the answer never changes once it is not WAIT, in whichever order the steps end.
    """
    assert finished == succeeded + failed + skipped <= needed, "every step ends once, in one way"
    if _met(step, finished, succeeded, failed, needed):
        return StepDecision.START
    return StepDecision.SKIP if finished == needed else StepDecision.WAIT


def _met(step: Step, finished: int, succeeded: int, failed: int, needed: int) -> bool:
    if step.cleanup or step.when == "all_finished":
        return finished == needed
    match step.when:
        case "all_succeeded":
            return succeeded == needed
        case "any_failed":
            return failed > 0
        case "one_succeeded":
            return succeeded > 0


def foreach_state(instances: Mapping[TaskState, int]) -> TaskState:
    """Return the state of a foreach step from those of its tasks: it completes when all did."""
    if any(instances.get(state) for state in UNFINISHED):
        return TaskState.RUNNING
    lost = [state for state in _LOST if instances.get(state)]
    return lost[0] if lost else TaskState.COMPLETED


def run_state(steps: Mapping[TaskState, int], *, ended: RunEnd | None = None) -> RunState:
    """Return the state of a run from the number of steps in each state."""
    if any(steps.get(state) for state in UNFINISHED):
        return RunState.RUNNING
    if ended is not None and steps.get(TaskState.CANCELLED):
        return RunState.CANCELLED if ended == "cancelled" else RunState.FAILED
    if steps.get(TaskState.FAILED) or steps.get(TaskState.EXPIRED):
        return RunState.FAILED
    return RunState.CANCELLED if steps.get(TaskState.CANCELLED) else RunState.COMPLETED


# What a step sees ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step upstream, as templates and conditions see it: `steps.extract.result` and so on."""

    state: TaskState
    result: object = None
    error: object = None


@dataclass(frozen=True, slots=True)
class Scope:
    """The values for templates and conditions: the run's input, and at least the steps in `uses`. A
    step that has not ended (its child needed one success only) has no result."""

    input: object
    steps: Mapping[str, StepResult] = field(default_factory=dict)
    item: object = _NOTHING
    index: int | None = None


def condition_met(condition: str | None, scope: Scope) -> bool:
    """Whether a step's condition lets it start; ConditionFailed if it has no answer."""
    if condition is None:
        return True
    asked = conditions.compiled(condition)
    steps = {name: _seen(scope.steps[name]) for name in asked.steps}
    return asked.evaluate({"input": scope.input, "steps": steps})


def _seen(step: StepResult) -> dict[str, object]:
    return {"state": str(step.state), "result": step.result, "error": step.error}


# The tasks a step becomes -------------------------------------------------------------------------


def items(step: Step, scope: Scope) -> list[object] | None:
    """Return the items of a foreach step; None for other steps."""
    if step.foreach is None:
        return None
    found = json.loads(_Filling(scope, MOST_FAN_BYTES).document(step.foreach))
    if not isinstance(found, list):
        raise RenderFailed(f"foreach needs a list, and {_kind(found)} is none")
    if len(found) > MOST_ITEMS:
        raise RenderFailed(f"foreach has {len(found)} items; the most is {MOST_ITEMS}")
    return found


def render(template: TaskTemplate, scope: Scope, most: int = MOST_BYTES) -> TaskTemplate:
    """Return the task with all templates filled in; RenderFailed if that cannot be done: the step
    fails.

    In the payload a string that is one template and nothing else takes the type of its value;
    everywhere else a template becomes text. Inside a URL it is percent-encoded, except at the
    beginning, so that `{{input.base}}/orders/{{input.id}}` does what it looks like.
    """
    if not template.dynamic:
        return template
    filling = _Filling(scope, most)
    return replace(
        template,
        spec=_spec(template.spec, filling),
        payload=filling.document(template.payload),
        name=template.name and filling.line(template.name, 200),
        labels=template.labels and {k: filling.line(v) for k, v in template.labels.items()},
        concurrency_key=template.concurrency_key and filling.line(template.concurrency_key, 200),
        dynamic=False,
    )


def render_each(
    step: Step, scope: Scope, found: Sequence[object], most: int = MOST_BYTES
) -> Iterator[TaskTemplate]:
    """Yield the tasks of a foreach step, in the order of its items."""
    total = 0
    for index, item in enumerate(found):
        made = render(step.template, replace(scope, item=item, index=index), most)
        total += len(made.payload)
        if total > MOST_FAN_BYTES:
            raise RenderFailed(f"the payloads of the items have more than {MOST_FAN_BYTES} bytes")
        yield made


def look_up(reference: Reference, scope: Scope) -> object:
    """Return the value of a reference. What lies below a step that has no result is null."""
    keys = reference.keys
    if reference.root == "steps":
        value = _seen(scope.steps[str(keys[0])])[str(keys[1])]
        if value is None:
            return None
        keys = keys[2:]
    else:
        value = {"input": scope.input, "item": scope.item, "index": scope.index}[reference.root]
    for key in keys:
        value = _part(value, key, reference)
    return value


def _part(value: object, key: str | int, reference: Reference) -> object:
    if isinstance(value, Mapping) and str(key) in value:
        return value[str(key)]
    if isinstance(value, list) and str(key).isascii() and str(key).isdigit():
        if int(key) < len(value):
            return value[int(key)]
        raise RenderFailed(f"{{{{{reference.text}}}}}: the list has {len(value)} items only")
    raise RenderFailed(f"{{{{{reference.text}}}}}: {_kind(value)} has no {str(key)[:100]!r}")


class _Filling:
    """Templates filled in up to a total size: a short one may name a long value many times."""

    def __init__(self, scope: Scope, most: int) -> None:
        self._scope = scope
        self._most = most
        self._left = most
        self._texts: dict[Reference, str] = {}

    def document(self, text: str) -> str:
        """Fill in the string values of a JSON document."""

        def change(value: str) -> bytes:
            reference = whole(value)
            if reference is None:
                return json.dumps(self.text(value)).encode()
            made = _json(look_up(reference, self._scope)).encode()
            self._spend(len(made))
            return made

        self._spend(len(text))
        return rewrite(text.encode(), change).decode()

    def text(self, text: str, *, url: bool = False) -> str:
        """Fill in plain text."""
        made: list[str] = []
        for part in _parts(text):
            if isinstance(part, str):
                made.append(part)
                continue
            filled = self._text_of(part)
            if url and made:
                filled = quote(filled, safe="")
            self._spend(len(filled))
            made.append(filled)
        return "".join(made)

    def line(self, text: str, most: int = 500) -> str:
        """Fill in text for a column: without control characters, and cut to its length."""
        made = "".join(char if char.isprintable() else " " for char in self.text(text))[:most]
        return made or "-"

    def _text_of(self, reference: Reference) -> str:
        found = self._texts.get(reference)
        if found is None:
            value = look_up(reference, self._scope)
            found = value if isinstance(value, str) else _json(value)
            try:
                found.encode()
            except UnicodeEncodeError:  # half of a pair, which JSON can spell but no text can hold
                raise RenderFailed(f"{{{{{reference.text}}}}} holds what is no text") from None
            self._texts[reference] = found
        return found

    def _spend(self, length: int) -> None:
        self._left -= length
        if self._left < 0:
            raise RenderFailed(f"filled in, the task has more than {self._most} bytes")


def _spec(text: str, filling: _Filling) -> str:
    if "{{" not in text:
        return text
    spec = json.loads(text)
    target = spec["target"]
    if target.get("url"):
        target["url"] = url = filling.text(target["url"], url=True)
        if problem := url_problem(url):
            raise RenderFailed(f"filled in, the URL {url[:100]!r} {problem}")
    if target.get("headers"):
        target["headers"] = {
            name: _checked_header(name, filling.line(value, 8192))
            for name, value in target["headers"].items()
        }
    if target.get("argv"):
        target["argv"] = [filling.text(argument) for argument in target["argv"]]
        if any("\x00" in argument for argument in target["argv"]):
            raise RenderFailed("an argument of the command contains a NUL character")
    return _json(spec)


def _checked_header(name: str, value: str) -> str:
    if any(char > "\xff" for char in value):
        raise RenderFailed(f"the header {name} cannot hold {value[:50]!r}")
    return value


def _parts(text: str) -> Iterator[str | Reference]:
    try:
        yield from parts(text)
    except BadReference as error:  # checked before it was stored
        raise RenderFailed(str(error)) from None


def _json(value: object) -> str:
    if _nested_beyond(MOST_NESTING, value):
        raise RenderFailed("a value is nested too deeply")
    return json.dumps(value, separators=(",", ":"))


def _nested_beyond(levels: int, value: object) -> bool:
    """Whether lists and objects are nested deeper; interpreters differ in how deep they go."""
    found = [value] if isinstance(value, list | dict) else []
    for _ in range(levels):
        inside = (each.values() if isinstance(each, dict) else each for each in found)
        found = [one for some in inside for one in some if isinstance(one, list | dict)]
        if not found:
            return False
    return True


def _kind(value: object) -> str:
    """Return the kind of a value, in a word or two."""
    return next((word for kind, word in _KINDS.items() if isinstance(value, kind)), "nothing")
