"""Structs of answers are filled by the names of their fields; a name that nothing has raises."""

from dataclasses import dataclass

import pytest
from msgspec import Struct

from mainspring.api.views import view


class Shown(Struct):
    """What a caller reads."""

    id: int
    name: str
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class Row:
    id: int
    name: str


@dataclass(frozen=True, slots=True)
class Details:
    name: str
    labels: dict[str, str]


def test_the_first_source_with_the_name_counts() -> None:
    for number in (1, 2):
        shown = view(Shown, Row(number, "row"), Details("details", {"a": "b"}))
        assert shown == Shown(number, "row", {"a": "b"})


def test_what_is_given_goes_before_the_sources() -> None:
    assert view(Shown, Row(1, "row"), name="given", labels={}) == Shown(1, "given", {})


def test_a_field_without_a_source_is_an_error() -> None:
    with pytest.raises(AttributeError, match="labels"):
        view(Shown, Row(1, "row"))
