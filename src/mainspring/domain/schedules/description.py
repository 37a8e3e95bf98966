"""Schedules in plain English, and what is worth a warning about them."""

from collections.abc import Iterator, Sequence

from mainspring.domain.schedules import cron as crons
from mainspring.domain.schedules.cron import Cron
from mainspring.domain.schedules.definition import ScheduleDefinition, Timetable, recurrence_of
from mainspring.domain.schedules.recurrence import ZonedRecurrence
from mainspring.domain.schedules.zones import BY_ELAPSED_TIME, SECOND, wall_at, zone

_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_ORDINALS = ("first", "second", "third", "fourth", "fifth")
_UNITS = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))
_YEAR = 366 * 86400.0
_MOST_DATES = 10


def describe(definition: ScheduleDefinition) -> str:
    """Return a definition as one English sentence."""
    if definition.interval is not None:
        return f"Every {_duration(definition.interval)}."
    where = "" if definition.timezone == "UTC" else f", {definition.timezone} time"
    if definition.cron is not None:
        text = _cron(crons.parse(definition.cron))
    else:
        text = f"by the rule {definition.rrule}"
    return f"{text[0].upper()}{text[1:]}{where or ', UTC'}."


def warnings(definition: ScheduleDefinition, table: Timetable, now: float) -> list[str]:
    """Return what a person should know before saving this."""
    return [
        *_about_times(definition, table, now),
        *_about_policies(definition, table, now),
        *_about_dst(definition, now),
    ]


# The sentence ---------------------------------------------------------------------------------


def _cron(cron: Cron) -> str:
    months = sorted(cron.months)
    parts = [_clock(cron), _days(cron)]
    if len(months) < 12:
        parts.append(f"in {_list([_MONTHS[m - 1] for m in months])}")
    return ", ".join(part for part in parts if part)


def _clock(cron: Cron) -> str:
    if cron.per_day == 86400:
        return "every second"
    if len(cron.seconds) > 1:
        return f"{_every(cron.seconds, 60, 'second')}{_within(cron)}"
    if len(cron.minutes) > 1 and len(cron.hours) == 24:
        return _every(cron.minutes, 60, "minute")
    if len(cron.minutes) > 1 and len(cron.minutes) * len(cron.hours) > 6:
        return f"{_every(cron.minutes, 60, 'minute')}{_hours(cron)}"
    if len(cron.minutes) == 1 and len(cron.hours) > 6:
        past = f"at {cron.minutes[0]} minutes past " if cron.minutes[0] else ""
        return past + _every(cron.hours, 24, "hour")
    return f"at {_list(_times(cron))}"


def _times(cron: Cron) -> list[str]:
    second = cron.seconds[0]
    return [
        f"{hour:02}:{minute:02}" + (f":{second:02}" if second else "")
        for hour in cron.hours
        for minute in cron.minutes
    ]


def _within(cron: Cron) -> str:
    minutes = "" if len(cron.minutes) == 60 else f" {_every(cron.minutes, 60, 'minute')}"
    return minutes + ("" if len(cron.hours) == 24 else _hours(cron))


def _hours(cron: Cron) -> str:
    first, last = cron.hours[0], cron.hours[-1]
    if len(cron.hours) == last - first + 1:
        return f" from {first:02}:00 to {last:02}:59"
    return f" in the hours {_list([str(hour) for hour in cron.hours])}"


def _every(values: Sequence[int], whole: int, unit: str) -> str:
    if len(values) == whole:
        return f"every {unit}"
    step = values[1] - values[0] if len(values) > 1 else 0
    if step and list(values) == list(range(values[0], whole, step)):
        return f"every {step} {unit}s" + (f" from {values[0]} on" if values[0] else "")
    return f"at {unit}s {_list([str(value) for value in values])}"


def _days(cron: Cron) -> str:
    days = cron.days
    dates = [_ordinal(day) for day in sorted(days.dates)] if len(days.dates) < 31 else []
    dates += [
        "last day" if back == 0 else f"{_ordinal(back + 1)} to last day"
        for back in days.before_last
    ]
    dates += [f"weekday nearest the {_ordinal(day)}" for day in sorted(days.nearest_workday)]
    if days.last_workday:
        dates.append("last weekday")
    by_date = f"on the {_list(dates)} of the month" if dates else ""
    by_weekday = _weekdays(cron)
    if by_date and by_weekday:
        return f"{by_date} {'or' if days.either else 'and only'} {by_weekday}"
    return by_date or by_weekday


def _weekdays(cron: Cron) -> str:
    days = cron.days
    if len(days.weekdays) == 7:
        return ""
    if days.weekdays == frozenset(range(1, 6)) and not (days.nth_weekdays or days.last_weekdays):
        return "Monday through Friday"
    names = [_WEEKDAYS[day] for day in sorted(days.weekdays, key=lambda day: day or 7)]
    names += [f"the {_ORDINALS[n - 1]} {_WEEKDAYS[day]}" for day, n in sorted(days.nth_weekdays)]
    names += [f"the last {_WEEKDAYS[day]}" for day in sorted(days.last_weekdays)]
    return f"on {_list(names)}"


def _ordinal(number: int) -> str:
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number not in (11, 12, 13) else 0, "th")
    return f"{number}{suffix}"


def _list(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _duration(seconds: float) -> str:
    parts: list[str] = []
    for size, unit in _UNITS:
        amount = seconds // size if unit != "second" else round(seconds, 6)
        if amount:
            parts.append(
                f"{amount:g} {unit}s" if amount != 1 else unit if not parts else f"1 {unit}"
            )
        seconds -= amount * size if unit != "second" else 0
    return _list(parts)


# Warnings -------------------------------------------------------------------------------------


def _about_times(definition: ScheduleDefinition, table: Timetable, now: float) -> Iterator[str]:
    times = table.upcoming(now, 2)
    if not times:
        yield "it never fires: no time is left between now, its bounds and its excluded dates"
    elif len(times) == 2 and times[1] - times[0] <= 1:
        yield "it fires every second: 86400 tasks a day"
    if definition.max_runs == 0:
        yield "it never fires: max_runs is 0"


def _about_policies(definition: ScheduleDefinition, table: Timetable, now: float) -> Iterator[str]:
    times = table.upcoming(now, 2)
    period = times[1] - times[0] if len(times) == 2 else None
    misfire, overlap = definition.misfire, definition.overlap
    if misfire.policy == "all" and overlap == "skip":
        yield (
            "misfire 'all' contradicts overlap 'skip': of the missed runs only "
            f"{definition.max_running} would start; use overlap 'queue' or 'allow'"
        )
    if misfire.policy == "all" and overlap == "cancel_running":
        yield "misfire 'all' contradicts overlap 'cancel_running': only the last would survive"
    if overlap == "allow" and definition.max_running > 1:
        yield "max_running has no effect with overlap 'allow'"
    for name, value in (("jitter", definition.jitter), ("spread", definition.spread)):
        if period is not None and value >= period:
            yield f"{name} ({value:g} s) is not shorter than the time between two runs"
    if period is not None and misfire.policy != "skip" and misfire.window < 1:
        yield "a misfire window below one second makes up for nothing"


def _about_dst(definition: ScheduleDefinition, now: float) -> Iterator[str]:
    """Return which of the coming year's changes of the clock touch it, and what happens then."""
    if definition.interval is not None:
        return
    series = recurrence_of(definition)
    assert isinstance(series, ZonedRecurrence)
    if series.policy == BY_ELAPSED_TIME:
        if definition.dst != type(definition.dst)():
            yield "the dst policy has no effect: it fires through every hour"
        return
    gap, repeat = definition.dst.gap, definition.dst.repeat
    for change in list(zone(definition.timezone).changes(now, now + _YEAR))[:_MOST_DATES]:
        low, high = sorted((change.before, change.after))
        wall = series.walls.next(wall_at(change.at, low) - SECOND)
        if wall is None or wall >= wall_at(change.at, high):
            continue
        if not change.skips:
            told = {"first": "fires the first time", "second": "fires the second time"}
            yield f"{wall:%Y-%m-%d %H:%M} comes twice: it {told.get(repeat, 'fires both times')}"
        elif gap == "skip":
            yield f"{wall:%Y-%m-%d %H:%M} does not exist: it is skipped"
        else:
            shifted = wall_at(change.at, change.after)
            yield f"{wall:%Y-%m-%d %H:%M} does not exist: it fires at {shifted:%H:%M}"
