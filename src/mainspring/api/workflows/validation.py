"""Validation of workflows: every step is compiled, and every problem is reported."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from mainspring.api.http.bodies import encode_json
from mainspring.api.http.decoding import MOST_PROBLEMS
from mainspring.api.http.payloads import payload_problems
from mainspring.api.http.problems import below, raise_if
from mainspring.api.tasks.validation import CompiledSpec, TaskValidator, queueing, seconds_of
from mainspring.api.tasks.views import decode_spec
from mainspring.domain.schedules.template import has_placeholders, rewrite
from mainspring.domain.workflows import condition
from mainspring.domain.workflows.checks import Use, graph_problems, with_implied_needs
from mainspring.domain.workflows.definition import (
    MOST_STEPS,
    Step,
    TaskTemplate,
    WorkflowDefinition,
)
from mainspring.domain.workflows.reference import BadReference, Reference, parts, references, whole
from mainspring.errors import InvalidRequest, Problem
from mainspring.wire.tasks import CommandTarget, Delay, HttpTarget
from mainspring.wire.workflows import StepIn, WorkflowBody

_STEPS_PER_TURN = 50
_BASE = "https://x.example"


@dataclass(slots=True)
class _Findings:
    """Findings in a step: its problems, and the steps that it refers to."""

    index: int
    in_foreach: bool
    problems: list[Problem] = field(default_factory=list)
    uses: dict[str, str] = field(default_factory=dict)
    """Places of the first references to steps, by step."""
    dynamic: bool = False

    def add(self, pointer: str, detail: str) -> None:
        self.problems.append(Problem(f"/steps/{self.index}{pointer}", detail))

    def check_text(self, pointer: str, text: str) -> None:
        """Check a text that may hold templates."""
        if "{{" not in text:
            return
        self.dynamic = True
        try:
            found = list(references(text))
        except BadReference as error:
            self.add(pointer, str(error))
            return
        for reference in found:
            self._reference(pointer, reference)

    def check_document(self, pointer: str, document: bytes) -> None:
        """Check all strings of a JSON document."""

        def look(text: str) -> bytes:
            self.check_text(pointer, text)
            return b"0"

        if has_placeholders(document):
            self.dynamic = True
            rewrite(document, look)

    def add_use(self, pointer: str, step: str) -> None:
        self.uses.setdefault(step, pointer)

    def _reference(self, pointer: str, reference: Reference) -> None:
        if reference.root in ("item", "index") and not self.in_foreach:
            self.add(pointer, f"{{{{{reference.root}}}}} is for the task of a step with foreach")
        elif reference.step is not None:
            self.add_use(pointer, reference.step)


@dataclass(frozen=True, slots=True)
class WorkflowValidator:
    """The rules of workflows; everything that is wrong is reported together."""

    tasks: TaskValidator
    max_payload: int
    horizon: float

    async def definition(self, name: str, wanted: WorkflowBody) -> WorkflowDefinition:
        """Return the definition in a body; raise InvalidRequest with all of its problems."""
        if len(wanted.steps) > MOST_STEPS:
            detail = f"{len(wanted.steps)} steps; the most is {MOST_STEPS}"
            raise InvalidRequest("the workflow is too large", [Problem("/steps", detail)])
        problems: list[Problem] = []
        deadline = self._span("/deadline", wanted.deadline, problems)
        if wanted.deadline is not None and deadline == 0 and not problems:
            problems.append(Problem("/deadline", "must be longer than zero"))
        given = encode_json(wanted.input)
        problems += [p.at("/input") for p in payload_problems(given, self.max_payload)]
        steps, uses = await self._steps(wanted.steps, problems)
        steps = with_implied_needs(steps)
        # Large graphs take long: other requests must not wait for them.
        problems += await asyncio.to_thread(graph_problems, steps, uses)
        raise_if(problems[:MOST_PROBLEMS], "the workflow does not make sense")
        return WorkflowDefinition(
            name, tuple(steps), wanted.on_failure, deadline or None, given.decode()
        )

    async def _steps(
        self, wanted: Sequence[StepIn], problems: list[Problem]
    ) -> tuple[list[Step], list[Use]]:
        steps: list[Step] = []
        uses: list[Use] = []
        for index, step in enumerate(wanted):
            findings = _Findings(index, step.foreach is not None)
            steps.append(self._step(step, findings))
            problems += findings.problems
            uses += [
                Use(index, f"/steps/{index}{pointer}", name)
                for name, pointer in findings.uses.items()
            ]
            if index % _STEPS_PER_TURN == 0:
                await asyncio.sleep(0)
        return steps, uses

    def _step(self, wanted: StepIn, findings: _Findings) -> Step:
        template = self._template(wanted, findings)
        foreach = self._foreach(wanted, findings)
        if wanted.if_ is not None:
            try:
                for name in condition.compiled(wanted.if_).steps:
                    findings.add_use("/if", name)
            except condition.BadCondition as error:
                findings.add("/if", str(error))
        if wanted.cleanup and wanted.when not in (None, "all_finished"):
            findings.add("/when", "a cleanup step runs however the steps before it ended")
        delay = self._span(f"/steps/{findings.index}/delay", wanted.delay, findings.problems)
        return Step(
            wanted.id,
            template,
            tuple(wanted.needs),
            "all_finished" if wanted.cleanup else wanted.when or "all_succeeded",
            wanted.if_,
            foreach,
            delay,
            wanted.cleanup,
            uses=tuple(findings.uses),
        )

    def _template(self, wanted: StepIn, findings: _Findings) -> TaskTemplate:
        payload = bytes(wanted.payload)
        findings.problems += [
            p.at(f"/steps/{findings.index}{p.pointer}")
            for p in payload_problems(payload, self.max_payload)
        ]
        findings.check_document("/payload", payload)
        for pointer, text in _texts(wanted):
            findings.check_text(pointer, text)
        spec = self._spec(wanted, findings)
        return TaskTemplate(
            spec.encoded.decode(),
            payload.decode(),
            spec.capability,
            *queueing(wanted),
            spec.jitter,
            findings.dynamic,
        )

    def _spec(self, wanted: StepIn, findings: _Findings) -> CompiledSpec:
        """Return the spec of a step's task, checked like any other. Where its URL has templates, a
        sample of it is checked."""
        target, url = wanted.target, None
        if isinstance(target, HttpTarget) and "{{" in target.url:
            url = target.url
            target = msgspec.structs.replace(target, url=_sample(url))
        compiled = self.tasks.compile_timeless(wanted, target, wanted.jitter)
        for problem in compiled.problems:
            findings.add(problem.pointer, problem.detail)
        if url is None:
            return compiled
        spec = decode_spec(compiled.encoded)
        spec = replace(spec, target=replace(spec.target, url=url))
        return compiled._replace(encoded=encode_json(spec.stored()))

    def _foreach(self, wanted: StepIn, findings: _Findings) -> str | None:
        if wanted.foreach is None:
            return None
        given = encode_json(wanted.foreach)
        at = f"/steps/{findings.index}/foreach"
        found = [p.at(at) for p in payload_problems(given, self.max_payload)]
        if not found and isinstance(wanted.foreach, str):
            found = [Problem(at, detail) for detail in _not_one_template(wanted.foreach)]
        findings.problems += found
        if not found:
            # Its own templates are filled in before there is an item.
            outside = _Findings(findings.index, in_foreach=False)
            outside.check_document("/foreach", given)
            findings.problems += outside.problems
            for name, pointer in outside.uses.items():
                findings.add_use(pointer, name)
        return given.decode()

    def _span(self, pointer: str, span: Delay | None, problems: list[Problem]) -> float:
        if span is None:
            return 0.0
        seconds = seconds_of(span, pointer, problems)
        if seconds > self.horizon:
            days = self.horizon / 86400
            problems.append(Problem(pointer, f"is too long: at most {days:g} days are allowed"))
        return seconds


def _texts(wanted: StepIn) -> Iterator[tuple[str, str]]:
    """Yield the texts that may hold templates, besides the payload, with their places."""
    if wanted.name is not None:
        yield "/name", wanted.name
    if wanted.concurrency is not None:
        yield "/concurrency/key", wanted.concurrency.key
    yield from ((below("/labels", name), text) for name, text in (wanted.labels or {}).items())
    match wanted.target:
        case HttpTarget():
            yield "/target/url", wanted.target.url
            for name, value in (wanted.target.headers or {}).items():
                yield below("/target/headers", name), value
        case CommandTarget():
            for place, argument in enumerate(wanted.target.argv):
                yield f"/target/argv/{place}", argument


def _not_one_template(text: str) -> Iterator[str]:
    try:
        if whole(text) is None:
            yield 'is neither a list nor the template of one: "{{input.files}}"'
    except BadReference as error:
        yield str(error)


def _sample(url: str) -> str:
    """Return a URL as it may look with its templates filled in."""
    made: list[str] = []
    try:
        for part in parts(url):
            made.append(part if isinstance(part, str) else "x" if made else _BASE)
    except BadReference:
        return _BASE  # reported where the text is looked at
    return "".join(made)
