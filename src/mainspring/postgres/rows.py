"""Rows read by name: the columns of a statement may stand in any order."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import MISSING, fields
from functools import lru_cache
from itertools import starmap
from operator import itemgetter
from typing import Any, TypeVar, cast

import asyncpg

T = TypeVar("T")


def read_rows(kind: type[T], rows: Sequence[asyncpg.Record]) -> list[T]:
    """Return each row as a value of a named tuple or dataclass, matched by the names of columns.

    The names are compared once for all rows. Columns that no field is named after are left out, and
    a field that has a default may have no column.
    """
    if not rows:
        return []
    pick = _picker(cast(Hashable, kind), tuple(rows[0].keys()))
    return list(starmap(kind, rows if pick is None else map(pick, rows)))


def read_row(kind: type[T], row: asyncpg.Record) -> T:
    """Return one row as `read_rows` does."""
    return read_rows(kind, [row])[0]


@lru_cache(1024)
def _picker(
    kind: type[Any], columns: tuple[str, ...]
) -> Callable[[asyncpg.Record], tuple[Any, ...]] | None:
    """Return what puts the columns in the order of the fields; None: they are in order."""
    required, optional = _fields_of(kind)
    if missing := [name for name in required if name not in columns]:
        raise TypeError(f"{kind.__name__}: no column {missing}, only {list(columns)}")
    present = [name in columns for name in optional]
    if present != sorted(present, reverse=True):
        raise TypeError(f"{kind.__name__}: no column {optional[present.index(False)]!r}, but later")
    places = [columns.index(name) for name in [*required, *optional] if name in columns]
    if places == list(range(len(columns))):
        return None
    pick = itemgetter(*places)
    return pick if len(places) > 1 else lambda row: (pick(row),)


def _fields_of(kind: type[Any]) -> tuple[list[str], list[str]]:
    """Return the fields without a default, and those with one, in the order of the constructor."""
    names: tuple[str, ...] | None = getattr(kind, "_fields", None)
    if names is not None:
        defaults = kind._field_defaults
        return [n for n in names if n not in defaults], [n for n in names if n in defaults]
    taken = [f for f in fields(kind) if f.init]
    plain = [f.name for f in taken if f.default is MISSING and f.default_factory is MISSING]
    return plain, [f.name for f in taken if f.name not in plain]
