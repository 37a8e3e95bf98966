"""Named SQL: every statement lives in store/queries/*.sql under a `-- name:` line.

Parameters have names there (`:due`). PostgreSQL knows only numbers, so a statement is compiled when
it is loaded, and puts the values in order when it is run, on the database or on a connection. Rows
are read by the names of their columns:

    task = await SQL["lock_task"].row(connection, LockedTask, tenant_id=1, task_id=task_id)

What several statements of a file have in common stands before them, under a `-- name: {…}` line.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Protocol, TypeVar

import asyncpg

from mainspring.postgres.rows import read_row, read_rows

T = TypeVar("T")

# What looks like a parameter within a string, a name, a body or a comment is none. Nor is what
# follows a value or another colon: `::` is a cast, `[1:n]` a slice.
_TOKEN = re.compile(
    r"""'(?:[^']|'')*' | "[^"]*" | (?P<tag>\$(?:[a-z_]\w*)?\$).*?(?P=tag) | --[^\n]* | /\*.*?\*/
    | (?<![\w:)\]]) :(?P<name>[a-z_]\w*)""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)


class Queryable(Protocol):
    """What runs statements: the database, or a connection within a transaction."""

    async def fetch(self, query: str, /, *args: object) -> Sequence[asyncpg.Record]: ...

    async def fetchval(self, query: str, /, *args: object) -> Any: ...


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement with named parameters. To call it gives the arguments of `fetch`."""

    name: str
    text: str
    """As it is written, with names."""
    sql: str = field(init=False)
    """As PostgreSQL takes it: parameters are numbered in the order in which they first appear."""
    parameters: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        numbers: dict[str, int] = {}

        def number(found: re.Match[str]) -> str:
            name = found["name"]
            return f"${numbers.setdefault(name, len(numbers) + 1)}" if name else found[0]

        object.__setattr__(self, "sql", f"-- {self.name}\n{_TOKEN.sub(number, self.text)}")
        object.__setattr__(self, "parameters", tuple(numbers))

    def __call__(self, **values: Any) -> tuple[Any, ...]:
        """Return the SQL and the values in their order. TypeError: some are missing or unknown."""
        try:
            if len(values) == len(self.parameters):
                return (self.sql, *[values[name] for name in self.parameters])
        except KeyError:
            pass
        wanted, given = set(self.parameters), set(values)
        raise TypeError(
            f"{self.name}: missing {sorted(wanted - given)}, unknown {sorted(given - wanted)}"
        )

    async def fetch(self, on: Queryable, /, **values: Any) -> Sequence[asyncpg.Record]:
        """Return the rows as the driver has them."""
        return await on.fetch(*self(**values))

    async def rows(self, on: Queryable, kind: type[T], /, **values: Any) -> list[T]:
        """Return each row as a value of a named tuple or dataclass."""
        return read_rows(kind, await on.fetch(*self(**values)))

    async def row(self, on: Queryable, kind: type[T], /, **values: Any) -> T | None:
        """Return the first row so; None when there is none."""
        rows = await on.fetch(*self(**values))
        return read_row(kind, rows[0]) if rows else None

    async def one(self, on: Queryable, kind: type[T], /, **values: Any) -> T:
        """Return the row that there always is."""
        return read_row(kind, (await on.fetch(*self(**values)))[0])

    async def record(self, on: Queryable, /, **values: Any) -> asyncpg.Record | None:
        """Return the first row as the driver has it; None when there is none."""
        rows = await on.fetch(*self(**values))
        return rows[0] if rows else None

    async def found(self, on: Queryable, /, **values: Any) -> bool:
        """Whether there is a row, or one was changed."""
        return bool(await on.fetch(*self(**values)))

    async def value(self, on: Queryable, kind: type[T], /, **values: Any) -> T:
        """Return the one value that there always is."""
        value: T | None = await on.fetchval(*self(**values))
        assert value is not None, f"{self.name} has no value"
        return value

    async def value_or_none(self, on: Queryable, kind: type[T], /, **values: Any) -> T | None:
        """Return the one value; None when there is no row."""
        value: T | None = await on.fetchval(*self(**values))
        return value

    async def run(self, on: Queryable, /, **values: Any) -> None:
        """Run it, without a result."""
        await on.fetch(*self(**values))

    def filled(self, **fragments: str) -> "Statement":
        """Return the statement with fragments of SQL in place of the names in braces."""
        text = self.text
        for name, fragment in fragments.items():
            text = text.replace(f"{{{name}}}", fragment)
        return Statement(self.name, text)


def load(file: str) -> dict[str, Statement]:
    """Return all statements of one file by name."""
    folder = resources.files("mainspring.store").joinpath("queries")
    _preamble, *sections = folder.joinpath(f"{file}.sql").read_text("utf-8").split("-- name: ")
    statements, fragments = {}, {}
    for section in sections:
        name, _, text = section.partition("\n")
        if name.startswith("{"):
            fragments[name.strip(" {}")] = text.strip()
        else:
            text = text.strip().removesuffix(";")
            statements[name.strip()] = Statement(name.strip(), text).filled(**fragments)
    return statements
