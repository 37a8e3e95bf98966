"""Every operation says what it is: the document is only as good as what the routes carry."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from openapi_spec_validator import validate

from mainspring.api.http.operations import Operation
from support.openapi_changes import changes
from support.routes import document, every_route

DOCUMENT = document()
COMPONENTS: dict[str, dict[str, Any]] = DOCUMENT["components"]["schemas"]


@pytest.mark.parametrize(("method", "path", "operation"), list(every_route()))
def test_every_operation_is_documented(method: str, path: str, operation: Operation) -> None:
    """See mainspring.api.openapi.operation for how."""
    doc = operation.doc
    assert doc is not None, f"{method} {path} carries no Doc"
    assert doc.summary.rstrip(".") == doc.summary != "", "a summary is a title"
    assert doc.replies, "an operation answers something"
    if doc.body is not None:
        assert doc.body.examples, "a body is best understood by an example"


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


def test_a_validator_finds_the_document_valid() -> None:
    validate(DOCUMENT)


def test_each_component_has_a_plain_name() -> None:
    """Generated clients make a class of each, and two of one name are one too many."""
    for name, schema in COMPONENTS.items():
        assert re.fullmatch(r"[A-Z][A-Za-z]+", name)
        assert schema["title"] == name


def test_no_field_has_a_bare_boolean_for_a_schema() -> None:
    """Generators read an object where a schema stands."""
    for schema in every_schema():
        for part in schema.get("properties", {}).values():
            assert isinstance(part, dict), schema


def test_an_object_is_one_model() -> None:
    """Of alternatives beside the properties, generators make a class each, without these."""
    for schema in COMPONENTS.values():
        assert not {"oneOf", "anyOf", "allOf"} & schema.keys() or "properties" not in schema


def test_what_has_a_default_need_not_be_given() -> None:
    """openapi-typescript requires a field with a default: it is told in words."""
    for schema in every_schema():
        assert not any("default" in part for part in schema.get("properties", {}).values())
    task = COMPONENTS["TaskIn"]
    assert task["required"] == ["target"]
    assert task["properties"]["priority"]["description"] == "Default: `5`."
    assert "description" not in task["properties"]["run_at"]
    grace = COMPONENTS["RotationIn"]["properties"]["grace"]
    assert (grace["description"], grace["anyOf"][0]["maximum"]) == ("Default: `86400.0`.", 2592000)


def test_fields_of_every_answer_are_required() -> None:
    assert "schedule_id" in COMPONENTS["TaskOut"]["required"]
    assert "payload" not in COMPONENTS["TaskOut"]["required"]  # only when asked for
    assert COMPONENTS["TargetOut"]["required"] == ["type"]  # without what its type has not
    assert COMPONENTS["LeasesOut"]["required"] == ["tasks"]


def test_each_choice_names_its_type() -> None:
    for schema in every_schema():
        for part in schema.get("properties", {}).values():
            assert "enum" not in part or part["type"] == "string"
            assert None not in part.get("enum", ())


def test_all_problems_are_one_class() -> None:
    for path in DOCUMENT["paths"].values():
        for operation in path.values():
            for status, reply in operation["responses"].items():
                if int(status) >= 400:
                    schema = reply["content"]["application/problem+json"]["schema"]
                    assert schema["$ref"] == "#/components/schemas/ProblemDocument"


def every_schema() -> Iterator[dict[str, Any]]:
    """Yield the components, and all schemas inside them."""
    ahead = list(COMPONENTS.values())
    while ahead:
        schema = ahead.pop()
        yield schema
        ahead += [part for name in ("oneOf", "anyOf", "allOf") for part in schema.get(name, ())]
        ahead += schema.get("properties", {}).values()
        ahead += [schema[name] for name in ("items", "not") if name in schema]


def test_changes_of_a_document_are_all_listed() -> None:
    before = {"paths": {"/a": {"summary": "old"}, "/b": {}}, "tags": [1, 2]}
    after = {"paths": {"/a": {"summary": "new"}}, "tags": [1, 3]}
    assert list(changes(before, after)) == [
        ("summary", "old", "new"),
        ("/paths//b", {}, "(absent)"),
        ("/tags/1", 2, 3),
    ]
    assert not list(changes(DOCUMENT, DOCUMENT))
