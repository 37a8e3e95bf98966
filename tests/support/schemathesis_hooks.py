"""What Schemathesis must know beyond the document: possible times, and rules between fields.

Loaded by the `schemathesis` command of tests/acceptance/test_schemathesis.py, not by pytest. Where
SCHEMATHESIS_ANYTHING is set, only crashes and hangs are looked for: then nothing is left out, and
idempotency keys come again.
"""

import os
from datetime import datetime
from itertools import count
from typing import Any

import schemathesis
from hypothesis import strategies as st

from support.identities import Authority

# Not too far ahead: how far is a matter of configuration, which a schema cannot know.
_TIMES = st.builds(
    lambda time, offset: time.isoformat() + offset,
    st.datetimes(datetime(2027, 1, 1), datetime(2090, 1, 1)),
    st.sampled_from(["Z", "+01:00", "-05:30"]),
)
# Less than a day, which is the most that some may last.
_DURATIONS = st.builds(
    "PT{}H{}M{}S".format, st.integers(0, 22), st.integers(0, 9), st.integers(1, 9)
)
_URLS = st.builds(
    "{}://{}{}".format,
    st.sampled_from(["http", "https"]),
    st.from_regex(r"\A[a-z][a-z0-9]{0,19}(\.[a-z]{2,5})?(:[1-9][0-9]{0,3})?\Z"),
    st.from_regex(r"\A(/[a-z0-9._~-]{0,10}){0,3}(\?[a-z=&]{0,10})?\Z"),
)

_CRONS = st.builds(
    "{} {} {} * {}".format,
    st.sampled_from(["0", "*/5", "7,37", "10-20/3"]),
    st.sampled_from(["*", "8", "0-6"]),
    st.sampled_from(["*", "1", "L", "15W"]),
    st.sampled_from(["*", "MON-FRI", "0"]),
) | st.sampled_from(["@daily", "@hourly", "0 0 1 * * *", "0 9 * * MON#1"])
_RULES = st.builds(
    "FREQ={};INTERVAL={}".format,
    st.sampled_from(["HOURLY", "DAILY", "WEEKLY", "MONTHLY", "YEARLY"]),
    st.integers(1, 9),
)
_ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
_NETWORKS = st.sampled_from(["10.20.0.0/16", "192.0.2.7", "2001:db8::/32", "::1"])
_OWN = Authority().identity("tenant")

schemathesis.openapi.format("cron", _CRONS)
schemathesis.openapi.format("rrule", _RULES)
schemathesis.openapi.format("timezone", _ZONES)
schemathesis.openapi.format("ip-network", _NETWORKS)
schemathesis.openapi.format("pem-certificates", st.just(_OWN.certificate.decode()))
schemathesis.openapi.format("pem-private-key", st.just(_OWN.key.decode()))
schemathesis.openapi.format("date-time", _TIMES)
schemathesis.openapi.format("duration", _DURATIONS)
schemathesis.openapi.format("uri", _URLS)
schemathesis.openapi.format("cel", st.sampled_from(["true", "input.n > 3", "has(input.x)"]))
schemathesis.openapi.format("template", st.sampled_from(["{{input.files}}", "{{input.a[0]}}"]))


_ANYTHING = "SCHEMATHESIS_ANYTHING" in os.environ
_KEY = "Idempotency-Key"
_numbers = count(1)

# What may be said depends on other requests, on the time, or on another item of the same list, or,
# for a dry run, shows an id that will never exist: these have tests of their own.
_LEFT_OUT_PARAMETERS = {_KEY, "If-Match", "dry_run", "label"}
_LEFT_OUT_FIELDS = {
    "TaskIn": {"expires_at"},
    "TaskPatch": {"expires_at"},
    "TenantIn": {"spread"},
    "TenantPatch": {"spread"},
    "KeyIn": {"expires_at"},
    "RotationIn": {"expires_at"},
    "StepIn": {"needs", "when"},
    "ScheduleIn": {"input"},
    "PreviewIn": {"end_at", "calendars", "workflow", "input"},
    "SchedulePatch": {"start_at", "end_at", "calendars", "overlap", "task", "workflow", "input"},
    "RotateIn": {"secret"},
    "TaskFilterIn": {"label"},
    "LetterFilterIn": {"label"},
}
# The same, of what answers show: Schemathesis sends again what it read, so these must be known.
_LEFT_EMPTY = {
    "end_at": {"type": "null"},
    "calendars": {"type": "array", "maxItems": 0},
    "workflow": {"type": "null"},
}


def _one_of(*types: tuple[str, object], none: bool = False) -> dict[str, Any]:
    """One of these fields is given, of its type; with `none` all of them may be left out."""
    names = [name for name, _ in types]
    forms: list[dict[str, Any]] = [
        {
            "required": [name],
            "properties": {**{one: {"type": "null"} for one in names}, name: {"type": kind}},
        }
        for name, kind in types
    ]
    return {"oneOf": [*forms, {"properties": dict.fromkeys(names, False)}] if none else forms}


# The document says by `not` what fields may not say together. To make bodies, Schemathesis would
# try until one fits; here the same is said by alternatives. That the document's own words are true
# is shown by tests/integration/test_api_combinations.py.
_KINDS = (("cron", "string"), ("interval", ["number", "string"]), ("rrule", "string"))
_NOT_TWO_KEYS = {
    "not": {
        "required": ["overlap", "task"],
        "properties": {
            "overlap": {"enum": ["queue", "cancel_running"]},
            "task": {
                "type": "object",
                "required": ["concurrency"],
                "properties": {"concurrency": {"type": "object"}},
            },
        },
    }
}
_ALTERNATIVES: dict[str, dict[str, Any]] = {
    "ScheduleIn": {
        **_one_of(*_KINDS),
        **_NOT_TWO_KEYS,
        "allOf": [_one_of(("task", "object"), ("workflow", "string"))],
    },
    "PreviewIn": {**_one_of(*_KINDS), **_NOT_TWO_KEYS},
    "SchedulePatch": _one_of(*_KINDS, none=True),
    "EgressIn": {
        "oneOf": [
            {
                "required": ["certificate", "key"],
                "properties": {"certificate": {"type": "string"}, "key": {"type": "string"}},
            },
            {"properties": {"certificate": {"type": "null"}, "key": {"type": "null"}}},
        ]
    },
}


@schemathesis.hook
def before_load_schema(_context: Any, raw_schema: dict[str, Any]) -> None:
    components = raw_schema["components"]["schemas"]
    for name, alternatives in _ALTERNATIVES.items():
        del components[name]["not"]
        components[name] |= alternatives
    # A smaller limit, which the node is started with: thousands of tasks an example show no more.
    components["BatchIn"]["properties"]["tasks"]["maxItems"] = 100
    if not _ANYTHING:
        _leave_out(raw_schema["paths"], components)


def _leave_out(paths: dict[str, Any], components: dict[str, Any]) -> None:
    for path in paths.values():
        for operation in path.values():
            operation["parameters"] = [
                parameter
                for parameter in operation["parameters"]
                if parameter["name"] not in _LEFT_OUT_PARAMETERS
            ]
    for name, fields in _LEFT_OUT_FIELDS.items():
        for field in fields:
            del components[name]["properties"][field]
    components["ScheduleIn"]["properties"] |= _LEFT_EMPTY


@schemathesis.hook
def before_call(_context: Any, case: Any, **_options: Any) -> None:
    for name, value in (case.headers or {}).items():
        if isinstance(value, int):  # an id that it read before, which it cannot send like that
            case.headers[name] = str(value)
        elif _ANYTHING and name == _KEY and _valid_key(value):
            # Mostly a new one, or the request would not be served; now and then one that comes
            # again, with the same body or another one.
            number = next(_numbers)
            case.headers[name] = f"known-{number % 7}" if number % 4 == 0 else f"new-{number}"


def _valid_key(value: Any) -> bool:
    return (
        isinstance(value, str)
        and 1 <= len(value) <= 255
        and value.isascii()
        and value.isprintable()
    )


@schemathesis.hook
def map_body(_context: Any, body: Any) -> Any:
    return _without_nul(_in_order(_own_identity(_distinct_steps(body))))


_OPEN = {"payload", "input", "answer", "foreach"}


def _without_nul(value: Any, inside: bool = False) -> Any:
    """A schema of "any JSON" cannot leave out one character, wherever it may stand."""
    if isinstance(value, list):
        return [_without_nul(part, inside) for part in value]
    if isinstance(value, dict):
        return {
            _without_nul(name, inside): _without_nul(part, inside or name in _OPEN)
            for name, part in value.items()
        }
    return value.replace("\0", "") if inside and isinstance(value, str) else value


def _distinct_steps(body: Any) -> Any:
    """No schema can say that the ids of a list's items differ."""
    if not isinstance(body, dict) or not isinstance(body.get("steps"), list):
        return body
    seen: set[str] = set()
    steps = []
    for index, step in enumerate(body["steps"]):
        name = step.get("id") if isinstance(step, dict) else None
        if isinstance(name, str) and name in seen:
            steps.append({**step, "id": f"{name[:80]}_{index}"})
        else:
            steps.append(step)
            seen.add(str(name))
    return {**body, "steps": steps}


def _own_identity(body: Any) -> Any:
    """Schemathesis sends again what it read: the key of something else fits no certificate."""
    if isinstance(body, dict) and body.get("certificate") == _OWN.certificate.decode():
        key = body.get("key")
        if isinstance(key, str) and 1 <= len(key) <= 100_000:
            return {**body, "key": _OWN.key.decode()}
    return body


def _in_order(body: Any) -> Any:
    """A stretch of time ends after it begins, which a schema cannot say of two fields."""
    if isinstance(body, dict) and {"from", "to"} <= body.keys():
        try:
            first, last = sorted([body["from"], body["to"]], key=datetime.fromisoformat)
        except (TypeError, ValueError):
            return body  # not a time at all, on purpose
        return {**body, "from": first, "to": last}
    return body
