"""What Schemathesis must know beyond the document: possible times, and rules between fields.

Loaded by the `schemathesis` command of tests/acceptance/test_schemathesis.py, not by pytest.
"""

from datetime import datetime
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


# What may be said depends on other requests, on the time, or on another item of the same list, or,
# for a dry run, shows an id that will never exist: these have tests of their own.
_LEFT_OUT_PARAMETERS = {"Idempotency-Key", "If-Match", "dry_run", "label"}
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


@schemathesis.hook
def before_load_schema(_context: Any, raw_schema: dict[str, Any]) -> None:
    for path in raw_schema["paths"].values():
        for operation in path.values():
            operation["parameters"] = [
                parameter
                for parameter in operation["parameters"]
                if parameter["name"] not in _LEFT_OUT_PARAMETERS
            ]
    for name, fields in _LEFT_OUT_FIELDS.items():
        properties = raw_schema["components"]["schemas"][name]["properties"]
        for field in fields:
            del properties[field]
    raw_schema["components"]["schemas"]["ScheduleIn"]["properties"] |= _LEFT_EMPTY
    # A smaller limit, which the node is started with: thousands of tasks a try show no more.
    raw_schema["components"]["schemas"]["BatchIn"]["properties"]["tasks"]["maxItems"] = 100


@schemathesis.hook
def map_body(_context: Any, body: Any) -> Any:
    return _plain(_without_nul(_in_order(_distinct_steps(body))))


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


def _in_order(body: Any) -> Any:
    """A stretch of time ends after it begins, which a schema cannot say of two fields."""
    if isinstance(body, dict) and {"from", "to"} <= body.keys():
        try:
            first, last = sorted([body["from"], body["to"]], key=datetime.fromisoformat)
        except (TypeError, ValueError):
            return body  # not a time at all, on purpose
        return {**body, "from": first, "to": last}
    return body


def _plain(value: Any) -> Any:
    """To JSON Schema 7.0 is an integer; here an integer is written like one."""
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value
