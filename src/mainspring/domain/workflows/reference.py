r"""References: `{{input.x}}`, `{{steps.extract.result.y}}`, `{{item}}` and `{{index}}` in texts.

A reference is a path from one of four roots: names after dots, names or numbers in brackets. `\{{`
stands for two braces that mean nothing.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

ROOTS = ("input", "steps", "item", "index")
STEP_PARTS = ("result", "state", "error")

# What is between the braces is bounded: otherwise many open braces would cost a search each.
_TEMPLATE = re.compile(r"\\\{\{|\{\{(?P<path>[^{}]{0,500})\}\}|\{\{")
_ROOT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY = re.compile(r'\.(?P<name>[\w-]+)|\[(?P<index>\d{1,9})\]|\["(?P<quoted>[^"\\]*)"\]')


class BadReference(ValueError):
    """A text has braces that are no reference; the message says why."""


class Reference(NamedTuple):
    """A path from a root."""

    text: str
    root: str
    keys: tuple[str | int, ...]

    @property
    def step(self) -> str | None:
        """The step that it refers to."""
        return str(self.keys[0]) if self.root == "steps" else None


@lru_cache(8192)
def parse(text: str) -> Reference:
    """Parse the text between two pairs of braces."""
    text = text.strip()
    root = _ROOT.match(text)
    if root is None or root[0] not in ROOTS:
        raise BadReference(f"{{{{{text[:60]}}}}} does not begin with input, steps, item or index")
    keys: list[str | int] = []
    at = root.end()
    while at < len(text):
        key = _KEY.match(text, at)
        if key is None:
            raise BadReference(f"{{{{{text[:60]}}}}} cannot be read from {text[at : at + 20]!r} on")
        keys.append(int(key["index"]) if key["index"] else key["name"] or key["quoted"] or "")
        at = key.end()
    _check(text, root[0], keys)
    return Reference(text, root[0], tuple(keys))


def references(text: str) -> Iterator[Reference]:
    """Yield all references in a text, in order; BadReference for braces that are none."""
    for part in parts(text):
        if isinstance(part, Reference):
            yield part


def parts(text: str) -> Iterator[str | Reference]:
    """Yield the pieces of a text: plain text, with escapes undone, and references."""
    at = 0
    for match in _TEMPLATE.finditer(text):
        if match.start() > at:
            yield text[at : match.start()]
        at = match.end()
        if match["path"] is not None:
            yield parse(match["path"])
        elif match[0] == "{{":
            raise BadReference(
                f"{text[match.start() : match.start() + 20]!r}: the braces hold no reference "
                "(write \\{{ for braces that mean nothing)"
            )
        else:
            yield "{{"
    if at < len(text):
        yield text[at:]


def whole(text: str) -> Reference | None:
    """Return the reference if the text is one reference and nothing else."""
    match = _TEMPLATE.fullmatch(text)
    return parse(match["path"]) if match is not None and match["path"] is not None else None


def _check(text: str, root: str, keys: list[str | int]) -> None:
    if root == "index" and keys:
        raise BadReference(f"{{{{{text[:60]}}}}}: the index is a number, and has no parts")
    if root == "steps" and (
        len(keys) < 2 or not isinstance(keys[0], str) or keys[1] not in STEP_PARTS
    ):
        raise BadReference(
            f"{{{{{text[:60]}}}}}: of a step there are {', '.join(STEP_PARTS)}, "
            "as in {{steps.extract.result}}"
        )
