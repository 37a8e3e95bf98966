"""Workflows declared in Python.

    flow = Workflow("nightly", on_failure="continue")

    extract = flow.step("extract", http="https://x.example/", payload={"day": flow.input.day})

    @flow.step(needs=extract, foreach=extract.result.body.files, payload={"file": ITEM})
    def clean(file): ...

    flow.step(send_mail, needs=clean)   # a task of an app, with its queue, retries and so on

    flow.step("sweep", command=["rm", "-rf", "/tmp/nightly"], cleanup=True)

    flow.definition()   # the body of POST /v1/workflows

A function becomes a step whose target is the handler of its name; a worker with a task of this name
runs it. Mistakes in the graph are found by the server, all of them at once.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

from mainspring.sdk.encoding import present

_PLAIN = re.compile(r"[\w-]+")


class StepReference:
    """A reference to a value of a run; attributes and items refer to parts of it. In a payload it
    stands for the value, in other texts (`f"{flow.input.day}.csv"`) for its text."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> "StepReference":
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, key: str | int) -> "StepReference":
        if isinstance(key, int):
            return StepReference(f"{self._path}[{key}]")
        if _PLAIN.fullmatch(key):
            return StepReference(f"{self._path}.{key}")
        if '"' in key or "\\" in key:
            raise ValueError(f"a name with quotes or backslashes cannot be referred to: {key!r}")
        return StepReference(f'{self._path}["{key}"]')

    def __str__(self) -> str:
        return f"{{{{{self._path}}}}}"

    def __repr__(self) -> str:
        return f"Reference({self._path!r})"


ITEM = StepReference("item")
"""In a step with foreach: the item that the task is for."""
INDEX = StepReference("index")
"""In a step with foreach: the place of the item, from 0 on."""


class DeclaredStep:
    """A step that was declared: other steps may need it, and refer to its result."""

    def __init__(self, name: str, function: Callable[..., Any] | None = None) -> None:
        self.id = name
        self.function = function
        self.result = StepReference(f"steps.{name}.result")
        self.state = StepReference(f"steps.{name}.state")
        self.error = StepReference(f"steps.{name}.error")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function that the step was declared by."""
        if self.function is None:
            raise TypeError(f"the step {self.id!r} was not declared by a function")
        return self.function(*args, **kwargs)


Needs = str | DeclaredStep | Iterable[str | DeclaredStep]


class Workflow:
    """A workflow to declare, step after step."""

    def __init__(
        self,
        name: str,
        *,
        on_failure: str | None = None,
        deadline: float | str | None = None,
        input: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.input = StepReference("input")
        self.steps: dict[str, DeclaredStep] = {}
        self._documents: list[dict[str, Any]] = []
        self._fields = present(on_failure=on_failure, deadline=deadline, input=input)

    @overload
    def step(
        self, name: str, function: Callable[..., Any] | None = None, **fields: Any
    ) -> DeclaredStep: ...
    @overload
    def step(self, name: Callable[..., Any], **fields: Any) -> DeclaredStep: ...
    @overload
    def step(
        self, name: None = None, **fields: Any
    ) -> Callable[[Callable[..., Any]], DeclaredStep]: ...

    def step(self, name: Any = None, function: Any = None, **fields: Any) -> Any:
        """Declare a step: by its name and a target (`target`, or in short `http`, `handler` or
        `command`), or by a function, with a name before it or under its own; without any of them,
        as the decorator of a function. What a task was declared with (its queue, its retries) holds
        for the step as well, where the step says nothing else.

        `needs` takes steps or names, `if_` is the step's `if`; all else is as in the API.
        """
        if isinstance(name, str):
            return self._add(name, function, fields)
        if name is None and function is None:
            return lambda function: self._add(None, function, fields)
        if name is not None and function is not None:
            raise TypeError("a step takes its name first, and then its function")
        return self._add(None, function if name is None else name, fields)

    def definition(self) -> dict[str, Any]:
        """Return the workflow as the API takes it."""
        return {"name": self.name, "steps": list(self._documents), **self._fields}

    def __str__(self) -> str:
        return json.dumps(self.definition(), indent=2)

    def _add(self, name: str | None, function: Any, fields: dict[str, Any]) -> DeclaredStep:
        if function is not None:
            fields = {**_declared(function), **fields}
            name = name or getattr(function, "__name__", fields["handler"])
        assert name is not None
        if name in self.steps:
            raise ValueError(f"the workflow {self.name!r} has a step {name!r} already")
        document: dict[str, Any] = {"id": name}
        if needs := _names(fields.pop("needs", ())):
            document["needs"] = needs
        if (condition := fields.pop("if_", None)) is not None:
            document["if"] = condition
        document["target"] = _target(name, fields)
        document |= _plain(fields)
        self._documents.append(document)
        made = self.steps[name] = DeclaredStep(name, function)
        return made


def _declared(function: Any) -> dict[str, Any]:
    """Return the fields of a step that calls a function."""
    if isinstance(function, DeclaredStep):
        raise TypeError(f"{function.id!r} is a step already: give its function itself")
    if hasattr(type(function), "as_step"):  # a task: it has a name and options of its own
        return dict(function.as_step())
    name = getattr(function, "__name__", None)
    if not callable(function) or name is None:
        raise TypeError(f"{function!r} is no function with a name: a step takes one, or a target")
    return {"handler": name}


def _target(name: str, fields: dict[str, Any]) -> Any:
    given = [word for word in ("target", "http", "handler", "command") if word in fields]
    if len(given) != 1:
        raise TypeError(f"the step {name!r} needs one of target, http, handler and command")
    value = _plain(fields.pop(given[0]))
    if callable(value):
        raise TypeError(f"the step {name!r} takes a function after its name, not as {given[0]}")
    match given[0]:
        case "http":
            return {"type": "http", "url": value}
        case "handler":
            return {"type": "handler", "name": value}
        case "command":
            return {"type": "command", "argv": list(value)}
    return value


def _names(needs: Needs) -> list[str]:
    several = [needs] if isinstance(needs, str | DeclaredStep) else needs
    return [need.id if isinstance(need, DeclaredStep) else need for need in several]


def _plain(value: Any) -> Any:
    """Return a value with references as texts."""
    if isinstance(value, StepReference):
        return str(value)
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value
