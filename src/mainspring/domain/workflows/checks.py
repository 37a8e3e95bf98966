"""Checks of a graph of steps, in linear time, which report all problems together.

The steps are in the order in which they were written; problems point to them by their index.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from mainspring.domain.workflows.definition import MOST_NEEDS, MOST_STEPS, Step
from mainspring.errors import Problem

_MOST_CYCLES = 10
_MOST_NAMED = 12


class Use(NamedTuple):
    """A reference of a step, known by its number, to another one, and where it stands."""

    number: int
    pointer: str
    step: str


def with_implied_needs(steps: Sequence[Step]) -> list[Step]:
    """Return the steps, where cleanup steps without needs come after all others: not after the ends
    of the graph only, for those are skipped while steps before them may still be stopping."""
    work = tuple(dict.fromkeys(step.id for step in steps if not step.cleanup))
    return [
        replace(step, needs=work, implied=True) if step.cleanup and not step.needs else step
        for step in steps
    ]


def graph_problems(steps: Sequence[Step], uses: Sequence[Use] = ()) -> list[Problem]:
    """Return everything that is wrong with the steps as a graph."""
    if len(steps) > MOST_STEPS:
        return [Problem("/steps", f"{len(steps)} steps; the most is {MOST_STEPS}")]
    edges = sum(len(step.needs) for step in steps)
    if edges > MOST_NEEDS:
        return [Problem("/steps", f"{edges} needs in all; the most is {MOST_NEEDS}")]
    known = {step.id: step for step in reversed(steps)}
    problems = [*_duplicates(steps), *_unknown_needs(steps, known), *_bad_whens(steps, known)]
    graph = {name: [n for n in step.needs if n in known] for name, step in known.items()}
    cycles = list(_cycles(graph))
    if cycles:
        problems += [_cycle_problem(steps, cycle) for cycle in cycles]
        problems += _unreachable(steps, graph, {name for cycle in cycles for name in cycle})
    problems += _bad_uses(steps, graph, uses, acyclic=not cycles)
    return problems


def _duplicates(steps: Sequence[Step]) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for index, step in enumerate(steps):
        first = seen.setdefault(step.id, index)
        if first != index:
            yield Problem(f"/steps/{index}/id", f"{step.id!r} is the id of step {first} already")


def _unknown_needs(steps: Sequence[Step], known: Mapping[str, Step]) -> Iterator[Problem]:
    for index, step in enumerate(steps):
        seen: set[str] = set()
        for place, need in enumerate(step.needs):
            if need not in known:
                yield Problem(f"/steps/{index}/needs/{place}", f"there is no step {need[:100]!r}")
            elif need in seen:
                yield Problem(f"/steps/{index}/needs/{place}", f"{need!r} is named twice")
            seen.add(need)


def _bad_whens(steps: Sequence[Step], known: Mapping[str, Step]) -> Iterator[Problem]:
    for index, step in enumerate(steps):
        if not step.needs and step.when in ("any_failed", "one_succeeded"):
            yield Problem(
                f"/steps/{index}/when", f"{step.when!r} can never be met by a step without needs"
            )
        if step.cleanup:
            continue
        for place, need in enumerate(step.needs):
            if need in known and known[need].cleanup:
                yield Problem(
                    f"/steps/{index}/needs/{place}",
                    f"{need!r} is a cleanup step: only cleanup steps can come after one",
                )


def _cycles(graph: Mapping[str, Collection[str]]) -> Iterator[list[str]]:
    """Yield some cycles, each as its steps in the order of the arrows."""
    left = {name: list(needs) for name, needs in graph.items()}
    for _turn in range(_MOST_CYCLES):
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            cycle: list[str] = error.args[1][:-1]
            first = min(range(len(cycle)), key=cycle.__getitem__)
            cycle = cycle[first:] + cycle[:first]
            yield cycle
            # Cut it open, to see whether there is another one.
            left[cycle[0]] = [need for need in left[cycle[0]] if need != cycle[-1]]
        else:
            return


def _cycle_problem(steps: Sequence[Step], cycle: list[str]) -> Problem:
    shown = cycle if len(cycle) <= _MOST_NAMED else [*cycle[: _MOST_NAMED - 1], "…", cycle[-1]]
    text = " → ".join([*shown, cycle[0]])
    index = next(index for index, step in enumerate(steps) if step.id == cycle[0])
    size = f" ({len(cycle)} steps)" if len(cycle) > _MOST_NAMED else ""
    return Problem(f"/steps/{index}/needs", f"is part of a cycle: {text}{size}")


def _unreachable(
    steps: Sequence[Step], graph: Mapping[str, Collection[str]], in_cycle: Collection[str]
) -> Iterator[Problem]:
    """Yield problems of the steps after a cycle: they can never start."""
    order = TopologicalSorter(graph)
    with suppress(CycleError):
        order.prepare()
    reached: set[str] = set()
    while ready := order.get_ready():
        reached.update(ready)
        order.done(*ready)
    for index, step in enumerate(steps):
        if step.id not in reached and step.id not in in_cycle:
            yield Problem(
                f"/steps/{index}", f"{step.id!r} is unreachable: what it needs can never end"
            )


def _bad_uses(
    steps: Sequence[Step],
    graph: Mapping[str, Collection[str]],
    uses: Sequence[Use],
    *,
    acyclic: bool,
) -> Iterator[Problem]:
    """Yield problems of references to steps that do not exist, or need not have ended by then."""
    distant: list[Use] = []
    needs: dict[int, frozenset[str]] = {}
    for use in uses:
        if use.number not in needs:
            needs[use.number] = frozenset(steps[use.number].needs)
        if use.step not in graph:
            yield Problem(use.pointer, f"speaks of the step {use.step[:100]!r}, which is not there")
        elif use.step not in needs[use.number]:
            distant.append(use)
    if not distant or not acyclic:
        return
    upstream = _upstream(graph)
    places = {name: place for place, name in enumerate(graph)}
    for use in distant:
        name = steps[use.number].id
        if not upstream[name] >> places[use.step] & 1:
            yield Problem(
                use.pointer,
                f"speaks of the step {use.step!r}, which is not upstream of {name!r}: "
                "neither its needs nor theirs name it",
            )


def _upstream(graph: Mapping[str, Collection[str]]) -> dict[str, int]:
    """Return all steps before each step, as bits: one machine word holds sixty-odd steps."""
    places = {name: place for place, name in enumerate(graph)}
    found: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():
        bits = 0
        for need in graph[name]:
            bits |= found[need] | 1 << places[need]
        found[name] = bits
    return found
