"""Every operation says what it is: the document is only as good as what the routes carry."""

from collections.abc import Iterator
from random import Random
from typing import Any, cast

import pytest

from mainspring.api.app import ApiDependencies, paths_of
from mainspring.api.routing import Operation
from mainspring.clock import ManualClock
from mainspring.config import Config
from mainspring.domain.ids import TaskIds
from mainspring.observe.metrics import Metrics


def described_app() -> ApiDependencies:
    """What the API is built from, with nothing behind it: enough to look at its routes."""
    nothing = cast("Any", None)
    return ApiDependencies(
        config=Config(),
        clock=ManualClock(0),
        tasks=nothing,
        keys=nothing,
        ids=TaskIds(Random(1)),
        rng=Random(1),
        node=nothing,
        metrics=Metrics(),
        database=nothing,
        desk=nothing,
    )


def operations() -> Iterator[tuple[str, str, Operation]]:
    for path, known in paths_of(described_app()).items():
        for method, operation in known.items():
            yield method, path, operation


@pytest.mark.parametrize(("method", "path", "operation"), list(operations()))
def test_every_operation_is_documented(method: str, path: str, operation: Operation) -> None:
    """See mainspring.api.documentation for how."""
    doc = operation.doc
    assert doc is not None, f"{method} {path} carries no Doc"
    assert doc.summary.rstrip(".") == doc.summary != "", "a summary is a title"
    assert doc.replies, "an operation answers something"
    for body in doc.bodies:
        assert body.examples, "a body is best understood by an example"


def test_operations_have_names_of_their_own() -> None:
    """Generated clients make a function of each."""
    names = [operation.doc.id for _, _, operation in operations() if operation.doc]
    assert len(names) == len(set(names))


def test_links_lead_to_operations() -> None:
    names = {operation.doc.id for _, _, operation in operations() if operation.doc}
    for _, _, operation in operations():
        for reply in operation.doc.replies if operation.doc else ():
            for link in reply.links.values():
                assert link.operation in names
