"""Durations as text: what is accepted, and that everything else is refused."""

import pytest

from mainspring.domain.duration import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("PT0S", 0),
        ("PT1.5S", 1.5),
        ("PT90M", 5400),
        ("PT2H30M", 9000),
        ("P1D", 86400),
        ("P2DT3H4M5S", 183845),
        ("P1W", 604800),
    ],
)
def test_strict_iso_8601(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "P",
        "PT",
        "P1DT",
        "1D",
        "P1Y",
        "P1M",
        "P1W1D",
        "PT1H1D",
        "-PT1S",
        "PT-1S",
        "PT1.5H",
        "PT1,5S",
        "pt1s",
        "PT1S ",
        "PT1S\n",
        "P1.D",
        "PT.5S",
        "PT1S1M",
        "P1D2D",
        "PT1٣S",
        "PT1e3S",
        "5",
        "PTinfS",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="ISO 8601"):
        parse_duration(text)
