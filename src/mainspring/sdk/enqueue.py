"""Tasks in your own transaction: they exist if, and only if, your transaction commits.

For programs that keep their data in the database in which Mainspring keeps its own. The SQL
function `mainspring.enqueue` creates a task for the tenant of the role that calls it; this module
makes the statement and its parameters for whichever driver you use:

    enqueue = mainspring.Enqueue(send_mail.prepare("ann@example.com"))
    cursor.execute(*enqueue.psycopg())                # psycopg, Django
    statement, values = enqueue.asyncpg()
    await connection.fetchval(statement, *values)     # asyncpg: the task's id
    statement, named = enqueue.named()
    session.execute(text(statement), named)           # SQLAlchemy
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from mainspring.errors import InvalidArguments
from mainspring.sdk.encoding import encode, to_builtins

FUNCTION = "mainspring.enqueue"

# Every value travels as text, which all drivers agree on, and is cast where it arrives.
_JSON = "CAST(CAST({} AS text) AS jsonb)"
_CASTS = {
    **dict.fromkeys(("target", "payload", "labels"), _JSON),
    **dict.fromkeys(("run_at", "expires_at"), "CAST(CAST({} AS text) AS timestamptz)"),
    "delay": "CAST(CAST({} AS text) AS interval)",
    **dict.fromkeys(("queue", "name", "tenant", "concurrency_key"), "CAST({} AS text)"),
    **dict.fromkeys(
        ("priority", "max_attempts", "concurrency_limit"), "CAST(CAST({} AS text) AS integer)"
    ),
    **dict.fromkeys(("timeout", "sla", "retry_initial"), "CAST(CAST({} AS text) AS float8)"),
    "tags": f"ARRAY(SELECT jsonb_array_elements_text({_JSON}))",
}
_PARTS = {
    "retry": {"max_attempts": "max_attempts", "initial": "retry_initial"},
    "concurrency": {"key": "concurrency_key", "limit": "concurrency_limit"},
    "requires": {"tags": "tags"},
}


class Enqueue:
    """A task that your own statement creates. A role of several tenants names one of them."""

    def __init__(self, task: Mapping[str, Any], *, tenant: str | None = None) -> None:
        self._values = _flat(task)
        if tenant is not None:
            self._values["tenant"] = tenant

    def psycopg(self) -> tuple[str, tuple[str, ...]]:
        """Return the statement and its parameters, with %s."""
        return self._statement(lambda _number, _name: "%s"), tuple(self._values.values())

    def asyncpg(self) -> tuple[str, tuple[str, ...]]:
        """Return the statement and its parameters, with $1, $2 and so on."""
        return self._statement(lambda number, _name: f"${number}"), tuple(self._values.values())

    def named(self) -> tuple[str, dict[str, str]]:
        """Return the statement and its parameters, with :name."""
        return self._statement(lambda _number, name: f":{name}"), dict(self._values)

    def _statement(self, place: Callable[[int, str], str]) -> str:
        arguments = [
            f"{name} => {_CASTS[name].format(place(number, name))}"
            for number, name in enumerate(self._values, 1)
        ]
        return f"SELECT {FUNCTION}({', '.join(arguments)})"


def _flat(task: Mapping[str, Any]) -> dict[str, str]:
    """Return the function's arguments as texts; InvalidArguments for what it does not take."""
    values: dict[str, str] = {}
    for field, value in task.items():
        if field in _PARTS:
            for part, inner in value.items():
                if part not in _PARTS[field]:
                    raise InvalidArguments(f"{FUNCTION} takes no {field}.{part}")
                values[_PARTS[field][part]] = _text(inner)
        elif field in _CASTS:
            values[field] = _text(value, field)
        else:
            raise InvalidArguments(f"{FUNCTION} takes no {field}")
    return values


def _text(value: Any, field: str = "") -> str:
    if field in ("target", "payload", "labels") or isinstance(value, list | tuple | msgspec.Raw):
        return encode(value).decode()
    plain = to_builtins(value)
    if isinstance(plain, str):
        return plain
    return f"{plain} seconds" if field == "delay" else str(plain)
