"""Documents as tests read them: their blocks of code, their links, and tables made from the source.

After a change of a setting, a metric or a crash point, write the tables anew:

    .venv/bin/python tests/support/docs.py
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, get_args

from prometheus_client import Counter, Gauge, Histogram

from mainspring import crash_points
from mainspring.config import Config
from mainspring.observe.metrics import Distribution, Metrics

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
)

# --- blocks -----------------------------------------------------------------------------------

_FENCE = re.compile(r"```(?P<language>\w*)")
_COMMENT = re.compile(r"<!-- (?P<word>not run|exit status|file): ?(?P<value>.*?) ?-->")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of code and what the comment before it says."""

    document: Path
    line: int
    language: str
    text: str
    follows: int | None
    """The index of the block right before it: whose output it may show."""
    not_run: str | None = None
    exit_status: int = 0
    file: str | None = None
    """The name of the file that it shows; other blocks use it."""

    @property
    def where(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def blocks(document: Path) -> list[Block]:
    """All fenced blocks, in order."""
    found: list[Block] = []
    comment: re.Match[str] | None = None
    opened: tuple[int, str] | None = None
    body: list[str] = []
    adjacent: int | None = None
    for number, line in enumerate(document.read_text().splitlines(), 1):
        if opened is not None:
            if line == "```":
                found.append(_block(document, *opened, body, adjacent, comment))
                opened, body, comment, adjacent = None, [], None, len(found) - 1
            else:
                body.append(line)
        elif fence := _FENCE.fullmatch(line):
            opened = number, fence["language"]
        elif line.strip():
            comment, adjacent = _COMMENT.fullmatch(line), None
    assert opened is None, f"{document.name}: a block is not closed"
    return found


def _block(
    document: Path,
    line: int,
    language: str,
    body: list[str],
    follows: int | None,
    comment: re.Match[str] | None,
) -> Block:
    options = {} if comment is None else {comment["word"]: comment["value"]}
    return Block(
        document,
        line,
        language,
        "\n".join(body) + "\n",
        follows,
        options.get("not run"),
        int(options.get("exit status", 0)),
        options.get("file"),
    )


# --- what commands answer ---------------------------------------------------------------------

_VARYING = (
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "<id>"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "<id>"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "<time>"),
    (re.compile(r"PostgreSQL \d+\.\d+"), "PostgreSQL <version>"),
    (re.compile(r"applied \d{4} \w+"), "applied <migration>"),
    (re.compile(r"schema: version (\d+|…)"), "schema: version <number>"),
    (re.compile(r"\b\d+\.\d+\b"), "<number>"),
    (re.compile(r"\b(fences from|epochs of partitions are) \d{8}\b"), r"\1 <floor>"),
)


def shape(output: str) -> Any:
    """An output without what differs from run to run: ids, times and measured numbers."""
    whole = _json(output)
    if whole is not None:
        return _mask(whole)
    shapes = [_shape_of_line(line) for line in output.strip().splitlines()]
    # How many migrations there are is no news to a reader: a few, and that there are more, will do.
    shapes = [s for s in shapes if s != "…"]
    return [s for i, s in enumerate(shapes) if s != "applied <migration>" or s not in shapes[:i]]


def _shape_of_line(line: str) -> Any:
    found = _json(line)
    return _mask_text(line.rstrip()) if found is None else _mask(found)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _mask(value: Any) -> Any:
    match value:
        case dict():
            return {
                # How late a task was depends on the machine's mood.
                name: "<lateness>" if name == "lateness" else _mask(item)
                for name, item in value.items()
            }
        case list():
            return [_mask(item) for item in value]
        case str():
            return _mask_text(value)
        case float():
            return "<number>"
        case _:
            return value


def _mask_text(text: str) -> str:
    for pattern, mask in _VARYING:
        text = pattern.sub(mask, text)
    return text


# --- links ------------------------------------------------------------------------------------

_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<title>.*)$", re.MULTILINE)


def links(document: Path) -> Iterator[str]:
    """Every link's target, blocks of code left out."""
    for match in _LINK.finditer(prose(document)):
        yield match["target"]


def anchors(document: Path) -> set[str]:
    """The anchors that a document's headings make."""
    titles = (match["title"].lower() for match in _HEADING.finditer(prose(document)))
    return {re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles}


def prose(document: Path) -> str:
    """A document without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)


# --- tables made from the source --------------------------------------------------------------

_KINDS = {int: "whole number", float: "number", bool: "true or false", str: "text"}


def settings_table() -> str:
    """Every setting, in the order of `config.py`."""
    rows = [
        (f"`{f.name}`", _kind(f.type), _default(f), _bounds(f.metadata), f.metadata["help"])
        for f in fields(Config)
    ]
    return _table(("setting", "kind", "default", "bounds", "meaning"), rows)


def metrics_table() -> str:
    """Every metric, under the name by which it is queried."""
    rows = [
        (
            f"`{exposed_name(metric)}`",
            type(metric).__name__.lower().replace("distribution", "histogram"),
            ", ".join(f"`{label}`" for label in metric._labelnames),
            metric._documentation,
        )
        for metric in metrics()
    ]
    return _table(("metric", "kind", "labels", "meaning"), rows)


def crash_points_table() -> str:
    rows = [(f"`{name}`", meaning) for name, meaning in crash_points.POINTS.items()]
    return _table(("crash point", "what the world looks like there"), rows)


GENERATED: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "settings": settings_table,
        "metrics": metrics_table,
        "crash points": crash_points_table,
    }
)


def metrics() -> list[Counter | Gauge | Histogram | Distribution]:
    kinds = (Counter, Gauge, Histogram, Distribution)
    return [value for value in vars(Metrics()).values() if isinstance(value, kinds)]


def exposed_name(metric: Counter | Gauge | Histogram | Distribution) -> str:
    return f"{metric._name}_total" if isinstance(metric, Counter) else metric._name


def regenerated(text: str) -> str:
    """A document's text with its tables made anew."""
    for name, make in GENERATED.items():
        opening, closing = f"<!-- generated: {name} -->", "<!-- end -->"
        pattern = re.compile(f"{re.escape(opening)}\n.*?{closing}", re.DOTALL)
        table = f"{opening}\n\n{make()}\n{closing}"
        text = pattern.sub(table.replace("\\", r"\\"), text)
    return text


def _kind(kind: Any) -> str:
    plain = next((part for part in get_args(kind) if part is not NoneType), kind)
    return _KINDS[plain]


def _default(setting: Field[Any]) -> str:
    if setting.default_factory is not MISSING:
        return "the host's name"
    default = setting.default
    if default is None:
        return "none"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default:.10g}`" if isinstance(default, float) else f"`{default}`"


def _bounds(metadata: Mapping[str, Any]) -> str:
    least, most = metadata["least"], metadata["most"]
    if least is None:
        return "" if most is None else f"≤ {most}"
    return f"≥ {least}" if most is None else f"{least} to {most}"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in lines)


def main() -> None:
    for document in DOCUMENTS:
        document.write_text(regenerated(document.read_text()))


if __name__ == "__main__":
    main()
