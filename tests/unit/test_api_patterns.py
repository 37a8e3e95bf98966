"""What a text in a request may be is told in words, whatever it is checked with."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from mainspring import wire
from mainspring.api.http.decoding import decode_task
from mainspring.errors import InvalidRequest
from mainspring.wire.patterns import in_words


def patterns_in(kind: Any) -> Iterator[str]:
    for part in (*get_args(kind), *getattr(kind, "__metadata__", ())):
        if isinstance(part, msgspec.Meta) and part.pattern is not None:
            yield part.pattern
        yield from patterns_in(part)


def wire_patterns() -> list[str]:
    found: set[str] = set()
    for module in pkgutil.iter_modules(wire.__path__):
        for member in vars(importlib.import_module(f"{wire.__name__}.{module.name}")).values():
            if isinstance(member, type) and issubclass(member, msgspec.Struct):
                for kind in get_type_hints(member, include_extras=True).values():
                    found.update(patterns_in(kind))
    return sorted(found)


def test_there_are_words_for_every_pattern() -> None:
    patterns = wire_patterns()
    assert len(patterns) > 10
    complaints = [f"Expected `str` matching regex {pattern!r}" for pattern in patterns]
    assert [complaint for complaint in complaints if in_words(complaint) == complaint] == []


@pytest.mark.parametrize(
    ("member", "pointer", "words"),
    [
        (b'"queue": ""', "/queue", "is not 1 to 100 ASCII letters, digits, `_`, `.` or `-`"),
        (b'"name": "a\\nb"', "/name", "is not one line without control characters"),
        (
            b'"labels": {"a:b": "c"}',
            "/labels/a:b",
            "is not 1 to 100 characters without `:` and without control characters",
        ),
    ],
)
def test_a_refusal_says_what_is_allowed(member: bytes, pointer: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_task(b'{"target": {"type": "handler", "name": "x"}, %s}' % member)
    assert [(p.pointer, p.detail) for p in refused.value.problems] == [(pointer, words)]
