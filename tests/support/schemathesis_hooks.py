"""What Schemathesis must know beyond the document: possible times, and rules between fields.

Loaded by the `schemathesis` command of tests/acceptance/test_schemathesis.py, not by pytest.
"""

from datetime import datetime
from typing import Any

import schemathesis
from hypothesis import strategies as st

# Not too far ahead: how far is a matter of configuration, which a schema cannot know.
_TIMES = st.builds(
    lambda time, offset: time.isoformat() + offset,
    st.datetimes(datetime(2027, 1, 1), datetime(2090, 1, 1)),  # noqa: DTZ001
    st.sampled_from(["Z", "+01:00", "-05:30"]),
)
_DURATIONS = st.builds(
    "PT{}H{}M{}S".format, st.integers(0, 99), st.integers(0, 9), st.integers(1, 9)
)
_URLS = st.builds(
    "{}://{}{}".format,
    st.sampled_from(["http", "https"]),
    st.from_regex(r"\A[a-z][a-z0-9]{0,19}(\.[a-z]{2,5})?(:[1-9][0-9]{0,3})?\Z"),
    st.from_regex(r"\A(/[a-z0-9._~-]{0,10}){0,3}(\?[a-z=&]{0,10})?\Z"),
)

schemathesis.openapi.format("date-time", _TIMES)
schemathesis.openapi.format("duration", _DURATIONS)
schemathesis.openapi.format("uri", _URLS)


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


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    plain = _plain(body)
    if context.operation.path == "/v1/leases" and isinstance(plain, dict):
        # A worker that asks for tasks may wait for a minute; nobody here has that much time.
        wait = plain.get("wait", 20)
        if isinstance(wait, int | float) and not isinstance(wait, bool) and 0 <= wait <= 60:
            plain["wait"] = 0
    return plain


def _plain(value: Any) -> Any:
    """To JSON Schema 7.0 is an integer; here an integer is written like one."""
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value
