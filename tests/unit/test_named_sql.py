"""SQL with named parameters, and rows read by name."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import asyncpg
import pytest

from mainspring.postgres.named_sql import Statement, load
from mainspring.postgres.rows import read_row, read_rows
from support.queries import QUERIES, SOURCES
from support.rows import MemoryRecord


class Pair(NamedTuple):
    """Two columns."""

    a: int
    b: str
    c: int = 3
    d: int = 4


@dataclass(frozen=True)
class Single:
    """One column."""

    a: int


def records(*rows: dict[str, Any]) -> Sequence[asyncpg.Record]:
    return cast("Sequence[asyncpg.Record]", [MemoryRecord(row) for row in rows])


def test_parameters_are_numbered_by_first_use() -> None:
    statement = Statement("find", "SELECT :b::int, :a, :b WHERE x = ANY(:many::uuid[])")
    sql = "-- find\nSELECT $1::int, $2, $1 WHERE x = ANY($3::uuid[])"
    assert statement(a=1, b=2, many=[3]) == (sql, 2, 1, [3])
    assert type(statement(a=1, b=2, many=[3])[0]) is str, "the driver takes nothing else"


@pytest.mark.parametrize(
    "text",
    [
        "SELECT ':a', 'it''s :b', x::text -- of :c\nFROM t WHERE at < '12:30'",
        "SELECT y[1:2], y[least(1, 2):z], (ARRAY[1, 2])[1 :2]",
        'SELECT "a :b" /* of :c\n or :d */ FROM t',
        "DO $$ BEGIN x := 1; PERFORM :a, $1; END $$",
        "CREATE FUNCTION f() AS $body$ SELECT :a, $$ :b $$, $1 $body$ LANGUAGE sql",
        "CALL f(x => 1, y:= 2)",
    ],
)
def test_what_only_looks_like_a_parameter_is_none(text: str) -> None:
    assert Statement("find", text)() == (f"-- find\n{text}",)


def test_wrong_names_are_refused() -> None:
    statement = Statement("find", "SELECT :a, :b")
    with pytest.raises(TypeError, match=r"find: missing \['b'\], unknown \['c'\]"):
        statement(a=1, c=2)
    with pytest.raises(TypeError, match=r"find: missing \['b'\], unknown \[\]"):
        statement(a=1)


def test_what_is_in_braces_is_filled_in_before() -> None:
    statement = Statement("find", "SELECT :a FROM t WHERE {which}").filled(which="x = :b AND :a")
    assert statement(a=1, b=2) == ("-- find\nSELECT $1 FROM t WHERE x = $2 AND $1", 1, 2)


def test_rows_are_read_by_name_in_any_order() -> None:
    assert read_rows(Pair, records({"a": 1, "b": "x"})) == [Pair(1, "x")]
    assert read_rows(Pair, records({"b": "x", "e": 0, "a": 1})) == [Pair(1, "x")]
    assert read_rows(Pair, records({"c": 5, "a": 1, "b": "x"})) == [Pair(1, "x", 5)]
    assert read_rows(Pair, []) == []
    assert read_row(Single, records({"b": "x", "a": 1})[0]) == Single(1)


def test_a_missing_column_is_an_error() -> None:
    with pytest.raises(TypeError, match="b"):
        read_rows(Pair, records({"a": 1}))
    with pytest.raises(TypeError, match="c"):
        read_rows(Pair, records({"a": 1, "b": "x", "d": 5}))


# How the statements are used ------------------------------------------------------------------


SPREAD = {
    "**head.key": {"tenant_id", "run_id"},
    "**owner_of(ownership)": {"node_id", "epoch", "beats", "partitions"},
}
"""What calls often spread, by its names."""


class Call(NamedTuple):
    """A statement as a module calls it; without `complete` more names come from elsewhere."""

    where: str
    file: str
    statement: str
    names: frozenset[str]
    complete: bool


def calls() -> Iterator[Call]:
    for path in sorted(SOURCES.rglob("*.py")):
        tree = ast.parse(path.read_text())
        files = dict(_files_of(tree))
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            match node.func:
                case (
                    ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=statement))
                    | ast.Attribute(
                        value=ast.Subscript(
                            value=ast.Name(id=name), slice=ast.Constant(value=statement)
                        )
                    )
                ) if name in files and ast.unparse(node.func)[-7:] != ".filled":
                    words = [word.arg or f"**{ast.unparse(word.value)}" for word in node.keywords]
                    every = frozenset(n for word in words for n in SPREAD.get(word, {word}))
                    names = frozenset(name for name in every if not name.startswith("**"))
                    complete = names == every
                    where = f"{path.relative_to(SOURCES)}:{node.lineno}"
                    yield Call(where, files[name], str(statement), names, complete)


def _files_of(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Return the names by which a module has the statements of files."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(func=ast.Attribute(attr="load"), args=[ast.Constant(value=file)]),
            ):
                yield name, str(file)
            case ast.ImportFrom(module=str() as module, names=names):
                for imported in names:
                    if imported.name == "SQL":
                        yield imported.asname or "SQL", module.rpartition(".")[2]


def test_every_call_names_the_parameters_of_its_statement() -> None:
    found = list(calls())
    assert len(found) > 200
    for call in found:
        wanted = set(load(call.file)[call.statement].parameters)
        fits = call.names == wanted if call.complete else call.names <= wanted
        told = f"{call.where}: {call.statement} takes {sorted(wanted)}, not {sorted(call.names)}"
        assert fits, told


def test_every_file_is_loaded_by_the_module_of_its_name() -> None:
    files = sorted(file.stem for file in QUERIES.glob("*.sql"))
    loading = {
        path: re.findall(r"^SQL = queries\.load\(\"(\w+)\"\)$", path.read_text(), re.MULTILINE)
        for path in SOURCES.rglob("*.py")
    }
    assert sorted(file for found in loading.values() for file in found) == files
    for path, found in loading.items():
        assert found in ([], [path.stem]), path
        assert not found or path.is_relative_to(SOURCES / "store"), path


def test_every_statement_is_used() -> None:
    sources = "".join(path.read_text() for path in SOURCES.rglob("*.py"))
    for file in QUERIES.glob("*.sql"):
        for name in load(file.stem):
            assert f'"{name}"' in sources, f"nobody uses {file.stem}.{name}"
