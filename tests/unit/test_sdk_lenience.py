"""The SDK reads the answers of newer servers: fields and words that it does not know do no harm."""

import ast
import inspect
import pkgutil
from importlib import import_module
from typing import Any

import msgspec
import pytest
from msgspec import inspect as types

from mainspring.sdk import resources
from mainspring.sdk.worker.protocol import Leases
from mainspring.wire.workers import JudgedListOut, NodeAddressList, PulsesOut

INSTANT = "2030-01-01T00:00:00Z"
ID = "01a1e170-40be-706a-9c6e-50040828df4d"
NEW = {"word": ["of", "tomorrow"]}
SAMPLES: dict[type[types.Type], Any] = {
    types.AnyType: NEW,
    types.RawType: NEW,
    types.BoolType: True,
    types.IntType: 1,
    types.FloatType: 1.5,
    types.StrType: "word-of-tomorrow",
    types.UUIDType: ID,
    types.DateTimeType: INSTANT,
    types.DateType: "2030-01-01",
}


def answers() -> dict[str, Any]:
    """Return every type that the clients and the worker decode, by name."""
    found: dict[str, Any] = {
        kind.__name__: kind for kind in (Leases, PulsesOut, JudgedListOut, NodeAddressList)
    }
    for module in pkgutil.iter_modules(resources.__path__, f"{resources.__name__}."):
        place = import_module(module.name)
        for node in ast.walk(ast.parse(inspect.getsource(place))):
            if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Page":
                wanted = ast.unparse(node)
            elif isinstance(node, ast.keyword) and node.arg == "answer":
                wanted = ast.unparse(node.value)
            else:
                continue
            if wanted not in ("page", "kind", "Page[T]"):
                found[wanted] = eval(wanted, vars(place))
    return found


ANSWERS = answers()


def newer(kind: types.Type) -> Any:
    """Return what a newer server might send for a type: every field, one more, and new words."""
    if isinstance(kind, types.Metadata):
        return newer(kind.type)
    if isinstance(kind, types.StructType):
        known = {field.encode_name: newer(field.type) for field in kind.fields}
        return known | {"a_new_field": NEW}
    if isinstance(kind, types.ListType | types.CollectionType):
        return [newer(kind.item_type)]
    if isinstance(kind, types.DictType):
        return {"a_new_key": newer(kind.value_type)}
    if isinstance(kind, types.UnionType):
        told = (t for t in kind.types if not isinstance(t, types.NoneType))
        return newer(next(told))
    assert type(kind) in SAMPLES, f"{kind} knows its own words only"
    return SAMPLES[type(kind)]


def test_the_search_finds_the_answers() -> None:
    assert {"Task", "Page[Task]", "Schedule", "WorkflowRun", "ExplanationOut"} <= set(ANSWERS)
    assert len(ANSWERS) > 30


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_new_fields_and_values_are_harmless(name: str) -> None:
    kind = ANSWERS[name]
    sent = msgspec.json.encode(newer(types.type_info(kind)))
    assert b"a_new_field" in sent
    assert isinstance(msgspec.json.decode(sent, type=kind), getattr(kind, "__origin__", kind))


def test_a_new_value_is_read_as_it_was_sent() -> None:
    pulse = {"id": ID, "action": "pause"}
    found = msgspec.json.decode(msgspec.json.encode({"tasks": [pulse]}), type=PulsesOut)
    assert str(found.tasks[0].action) == "pause"
