"""What commands print: a table for people, or JSON for programs."""

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text


class Format(StrEnum):
    """The forms of an answer."""

    table = "table"
    json = "json"


Output = Annotated[Format, typer.Option("-o", "--output", help="The form of the answer.")]


def show(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], output: Format) -> None:
    """Print a list; as JSON whole, as a table only these columns."""
    if output is Format.json:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    table = Table(*columns, box=SIMPLE_HEAD)
    for row in rows:
        # Text, because what others chose as a name must not be taken for markup.
        table.add_row(*(Text(_words(row.get(column))) for column in columns))
    # A table that is piped somewhere must not be cut to a terminal's width.
    console = Console()
    console = console if console.is_terminal else Console(width=10_000)
    console.print(table)


def show_one(row: Mapping[str, Any], output: Format) -> None:
    """Print one record, a field per line."""
    if output is Format.json:
        typer.echo(json.dumps(row, indent=2, ensure_ascii=False))
        return
    width = max(map(len, row), default=0)
    for name, value in row.items():
        typer.echo(f"{name.ljust(width)}  {_words(value)}")


def _words(value: Any) -> str:
    match value:
        case None:
            return "–"
        case list():
            return ", ".join(map(str, value))
        case _:
            return "".join(c if c.isprintable() else "?" for c in str(value))
