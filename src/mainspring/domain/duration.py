"""Durations as text: the strict part of ISO 8601 whose length never depends on a calendar."""

import re

_ISO = re.compile(
    r"P(?:(?P<weeks>\d{1,6})W"
    r"|(?:(?P<days>\d{1,9})D)?"
    r"(?:T(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,12}(?:\.\d{1,9})?)S)?)?)",
    re.ASCII,
)
_SECONDS = {"weeks": 604800.0, "days": 86400.0, "hours": 3600.0, "minutes": 60.0, "seconds": 1.0}


def parse_duration(text: str) -> float:
    """Seconds of `P1W`, `P2DT3H`, `PT1.5S`; ValueError for anything else.

    Years and months are refused: how long they are depends on when they begin.
    """
    match = _ISO.fullmatch(text)
    if match is None or text.endswith(("P", "T")):
        raise ValueError(
            f"{text!r} is not an ISO 8601 duration of weeks, days, hours, minutes, seconds"
        )
    parts = match.groupdict(default="0")
    return sum(float(parts[unit]) * seconds for unit, seconds in _SECONDS.items())
