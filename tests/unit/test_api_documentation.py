"""Every operation says what it is: the document is only as good as what the routes carry."""

import pytest

from mainspring.api.routing import Operation
from support.routes import every_route


@pytest.mark.parametrize(("method", "path", "operation"), list(every_route()))
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
    names = [operation.doc.id for _, _, operation in every_route() if operation.doc]
    assert len(names) == len(set(names))


def test_links_lead_to_every_route() -> None:
    names = {operation.doc.id for _, _, operation in every_route() if operation.doc}
    for _, _, operation in every_route():
        for reply in operation.doc.replies if operation.doc else ():
            for link in reply.links.values():
                assert link.operation in names
