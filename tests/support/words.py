"""Words that this project does not use, each with the one to use instead.

Metaphors make a reader learn a second vocabulary: everything here has a term of the field.
"""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|_")
_ALLOWED = re.compile(r"failed_tries|FAILED_TRIES")
"""A name that stays: a cause of lateness, which users read."""


class Banned(NamedTuple):
    """A pattern of words in lower case, and what to say instead."""

    pattern: str
    use: str

    def found_in(self, text: str) -> bool:
        """Whether a text contains it, words inside of identifiers counting too."""
        return re.search(rf"\b(?:{self.pattern})\b", spaced(text)) is not None

    def lines_of(self, text: str) -> Iterator[tuple[int, str]]:
        """The lines that contain it, with their numbers."""
        if self.found_in(text):  # most texts do not, and are looked at once
            for number, line in enumerate(text.splitlines(), 1):
                if self.found_in(line):
                    yield number, line


NOWHERE = (
    Banned("doors?|doorways?", "HTTP server, listener, connection limits"),
    Banned("rosters?", "worker registry"),
    Banned("hearts?", "heartbeat"),
    Banned("stocktakers?|stocktaking", "partition loader"),
    Banned("errands?", "background task"),
    Banned("chores?", "job"),
    Banned("desks?", "lease service"),
    Banned("friends?", "remote nodes"),
    Banned("nudges?|nudged|pokes?|poked", "interrupt_polls, request_dispatch"),
    Banned("sieves?", "filter"),
    Banned("tenures?", "ownership"),
    Banned("head starts?", "eager lease"),
    Banned("short ways?", "fast path"),
    Banned("portraits?", "worker info"),
    Banned("undertakers?", "what it does: finish, declare dead"),
)
"""Not in names, comments, docstrings, texts or documents."""

NOT_IN_NAMES = (
    Banned("streets?|shops?", "live_api, local_node"),
    Banned("crowds?", "many tasks, connections"),
    Banned("visitors?", "connection"),
    Banned("faces?", "sync_async"),
    Banned("allowing", "allowlist"),
    Banned("stocks?", "partition_loader, window"),
    Banned("keepers?", "recorder, housekeeper"),
    Banned("takers?", "lease holder"),
    Banned("relays?", "eager lease"),
    Banned("firings?", "occurrence"),
    Banned("made up", "backfill_tasks"),
    Banned("(?<!skipped )by hand", "manual_task"),
    Banned("bury|buried", "declare dead"),
    Banned("hatch|hatches", "the mechanism"),
    Banned("wish|wishes", "request"),
    Banned("patience", "timeout"),
    Banned("unsure|doubt", "maybe_expired, mark_stale"),
)
"""Words that plain English needs, but that say nothing as a name."""

EXECUTION = Banned(
    "tries(?! (?:again|every|more|to|it|a handler))"
    "|(?:an?|one|each|every|this|that|of|per|last|first|next|failed|lost|old|new|present)"
    " try(?! (?:to|again))",
    "execution",
)
"""One run of a task; the verb stays."""

OPENINGS = re.compile(r"(Answers|So many|What came of)\b")
"""How no docstring begins: it says what is returned, what a value limits, what a class does."""


@lru_cache(maxsize=10_000)
def spaced(text: str) -> str:
    """Return a text in lower case, with identifiers taken apart into their words."""
    return _CAMEL.sub(" ", _ALLOWED.sub("", text)).lower()


def names_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every name that a module gives or uses, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.Name():
                yield node.lineno, node.id
            case ast.Attribute():
                yield node.lineno, node.attr
            case ast.arg() | ast.keyword():
                yield node.lineno, node.arg or ""
            case ast.alias():
                yield node.lineno, node.asname or node.name


def docstrings_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every string that stands as a statement, with its line: those of attributes too."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text
