"""Every setting, frozen, parsed once from the environment and a TOML file.

A setting `lease` is read from MAINSPRING_LEASE, from the file that MAINSPRING_LEASE_FILE names, or
from `lease = …` in the TOML file that MAINSPRING_CONFIG names, in this order. All problems are
reported together. This is the only module that reads the environment.
"""

import os
import socket
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from types import UnionType
from typing import Any, get_args

from mainspring.domain.apikey import ENVIRONMENTS
from mainspring.errors import ConfigError

PREFIX = "MAINSPRING_"
STATEMENT_TIMEOUT = 20.0
"""Seconds after which a statement is given up."""
_MARGIN = 5.0


def setting(
    default: Any, help: str, *, least: float | None = None, most: float | None = None
) -> Any:
    """Return a field with its help text and bounds, from which docs/configuration.md is made."""
    metadata = {"help": help, "least": least, "most": most}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of a node. Durations are in seconds."""

    # The database
    database_url: str | None = setting(None, "PostgreSQL to use; also read from DATABASE_URL")
    direct_database_url: str | None = setting(
        None, "the same database without a pooler, for LISTEN and migrations; default: database_url"
    )
    database_ca: str | None = setting(
        None, "PEM file: speak TLS to the database, and check its name against these authorities"
    )
    database_pooler: bool = setting(
        False,
        "the database is behind a pooler in transaction mode: no prepared statements, no LISTEN",
    )
    database_connections: int = setting(8, "connections for API requests", least=1, most=1000)
    engine_connections: int = setting(6, "connections for the engine's drivers", least=2, most=100)
    acquire_timeout: float = setting(
        5.0, "how long a request waits for a connection before it is told 503", least=0.01
    )

    # The API
    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(7070, "port to listen on (0: any free one)", least=0, most=65535)
    advertise_url: str | None = setting(
        None,
        "where workers reach this node, as `GET /v1/workers/nodes` tells them; default: where it "
        "listens, by the host's name if that is every address",
    )
    api_key: str | None = setting(
        None, "the API key that commands use; in development: the one to create"
    )
    url: str = setting("http://127.0.0.1:7070", "where commands find the API")
    api_ca: str | None = setting(None, "file of the authorities that commands trust for https")
    client_cert: str | None = setting(
        None, "PEM file: the certificate that commands and workers show to the API"
    )
    client_key: str | None = setting(
        None, "PEM file: the certificate's key; default: in the file of the certificate"
    )
    proxy: str | None = setting(
        None,
        "HTTP proxy through which commands and workers reach the API, http://user:password@host:port",
    )
    key_environment: str = setting("live", "what new API keys are marked with: dev, test or live")
    requests_per_second: float = setting(
        0.0, "requests a tenant may send to this node each second (0: any number)", least=0
    )
    max_body: int = setting(16 * 2**20, "largest request body in bytes", least=1024)
    max_batch: int = setting(10_000, "most tasks in one batch", least=1, most=100_000)
    max_payload: int = setting(
        2**20, "largest payload, and largest result, of one task in bytes", least=0
    )
    horizon: float = setting(
        10 * 366 * 86400.0, "how far ahead a task may be due", least=1, most=100 * 366 * 86400
    )
    idempotency_ttl: float = setting(
        86400.0, "how long an idempotency key is remembered", least=86400
    )

    # The HTTP server
    tls_certificate: str | None = setting(None, "PEM file: serve https with this certificate chain")
    tls_key: str | None = setting(None, "PEM file: its key; default: in the file of the chain")
    tls_client_ca: str | None = setting(
        None, "PEM file: clients' certificates are checked against these authorities"
    )
    tls_client_required: bool = setting(False, "refuse clients without such a certificate")
    request_timeout: float = setting(
        30.0, "how long a request may take to arrive, and an answer to be taken", least=0.1
    )
    keep_alive: float = setting(75.0, "how long an idle connection is kept open", least=1)
    max_connections: int = setting(10_000, "connections at once; more are told 503", least=1)
    max_headers: int = setting(100, "most headers of a request", least=10, most=10_000)
    max_head: int = setting(32 * 1024, "largest request line and headers in bytes", least=1024)

    # The node
    node_name: str = setting(socket.gethostname, "this node's name, for people")
    slots: int = setting(
        12_500, "tasks the node's own executors run at once; one tenant gets at most 4/5", least=0
    )
    lease: float = setting(
        15.0, "how long a task is leased; long ones are extended at a third", least=1
    )
    longest_poll: float = setting(
        60.0,
        "seconds after which a worker's poll is answered at the latest, with nothing if need be: "
        "less than your load balancer's patience with silent connections",
        least=0.01,
    )
    worker_lease: float = setting(
        15.0, "how long a task is leased to a worker; a heartbeat makes it twice that", least=1
    )
    heartbeat: float = setting(0.5, "how often a node says that it is alive", least=0.05)
    node_ttl: float = setting(2.0, "silence after which a node is declared dead", least=0.2)
    look_ahead: float = setting(10.0, "how far ahead of time tasks are loaded", least=1, most=600)
    stream_cap: int = setting(256, "tasks of one stream and partition held in memory", least=8)
    tenant_cap: int = setting(1024, "the same for a tenant, divided among its streams", least=8)
    claim_batch: int = setting(1000, "most tasks claimed in one statement", least=1, most=10_000)
    record_batch: int = setting(
        1000, "most outcomes recorded in one statement", least=1, most=10_000
    )
    schedule_batch: int = setting(
        1000, "most schedules decided on in one transaction", least=1, most=5000
    )
    overdue_after: float = setting(
        10.0, "seconds after which an undecided schedule counts as overdue", least=1
    )
    wake_poll: float = setting(0.25, "how often changes by other nodes are looked for", least=0.01)
    reload_every: float = setting(60.0, "how often each partition is reloaded, as a net", least=1)
    aging_step: float = setting(
        60.0, "seconds of waiting that outweigh one step of priority", least=0
    )
    grace: float = setting(20.0, "how long running tasks may finish after SIGTERM", least=0)

    # Webhooks
    http_transfers: int = setting(10_000, "requests the node has open at once", least=1)
    http_per_tenant: int = setting(2_000, "of these, the most for one tenant", least=1)
    http_per_host: int = setting(
        256, "of these, the most of one tenant for one host and port", least=1
    )
    connect_timeout: float = setting(10.0, "how long connecting to a receiver may take", least=0.1)
    max_response: int = setting(65536, "bytes of an answer that are kept", least=0, most=2**24)
    read_limit: int = setting(
        2**20, "bytes of an answer that are read before the connection is cut", least=1024
    )
    ca_file: str | None = setting(
        None, "authorities that receivers' certificates are checked by; default: the machine's"
    )
    egress_allow: str = setting(
        "", "addresses and networks (CIDR, with commas) that may be called though they are private"
    )
    egress_deny: str = setting("", "addresses and networks that may never be called")
    egress_ports: str = setting("80,443,1024-65535", "ports that may be called")
    secrets_key: str | None = setting(
        None, "32 bytes in base64 or hex that seal secrets in the database"
    )
    secrets_keys_old: str = setting("", "earlier secrets_keys, with commas, until all is resealed")

    # Housekeeping
    retention_days: int = setting(30, "days that history is kept", least=1)
    ledger_retention_days: int = setting(
        365, "days that decisions on occurrences of schedules are kept, from the decision", least=1
    )
    partitions_ahead: int = setting(7, "days for which history partitions exist ahead", least=1)
    archive_command: str | None = setting(
        None,
        "a line for the shell, run for each table of old history; if its exit status is 0, the "
        "table is dropped",
    )

    # Observing
    log_level: str = setting("info", "debug, info, warning or error")
    log_format: str = setting("console", "console (for people) or json")
    loop_stall: float = setting(
        5.0,
        "seconds that the event loop may stand still before that is logged, with its stack, and "
        "`/healthz` fails (0: not watched)",
        least=0,
    )
    stall_action: str = setting(
        "log",
        "what follows then: log (that is all), or exit (the process ends with status 75, for a "
        "supervisor to start it again)",
    )
    crash_at: str | None = setting(
        None, "for tests: kill the process at this crash point, or at its nth passing (name:n)"
    )

    @property
    def read_cap(self) -> int:
        """Number of tasks of a stream that are read: one more than the window holds, to know
        whether there are more."""
        return self.stream_cap + 1

    @property
    def near(self) -> float:
        """Seconds from now within which a write wakes the owner: well beyond what the owner has
        loaded, so that a slow statement cannot slip between the two."""
        return max(3 * self.look_ahead, self.look_ahead + STATEMENT_TIMEOUT + _MARGIN)


def load(environ: Mapping[str, str] = os.environ, **overrides: Any) -> Config:
    """Return the configuration of this process; overrides (from the command line) win."""
    problems: list[str] = []
    from_toml = _read_toml(environ.get(PREFIX + "CONFIG"), problems)
    values: dict[str, Any] = {}
    for f in fields(Config):
        raw = _raw_value(f.name, environ, from_toml, problems)
        if overrides.get(f.name) is not None:
            raw = overrides[f.name]
        if raw is None or (raw == "" and isinstance(f.type, UnionType)):
            continue  # where there may be none, an empty text is none
        parsed = _parse(f.name, f.type, raw, f.metadata, problems)
        if parsed is not None:
            values[f.name] = parsed
    config = Config(**values)
    problems.extend(_contradictions(config))
    if problems:
        raise ConfigError(problems)
    return config


def unknown_settings(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return a warning for each variable that looks like a setting and is none: not an error,
    because a shared environment may name settings of a newer version."""
    known = {f.name.upper() + form for f in fields(Config) for form in ("", "_FILE")} | {"CONFIG"}
    warnings = []
    for name in sorted(name[len(PREFIX) :] for name in environ if name.startswith(PREFIX)):
        if name not in known:
            near = get_close_matches(name, sorted(known), n=1)
            meant = f"; is {PREFIX}{near[0]} meant?" if near else ""
            warnings.append(f"{PREFIX}{name} is not a setting{meant}")
    return warnings


def environment_of_programs(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of programs that we start: without our settings and their secrets."""
    return {name: value for name, value in environ.items() if not name.startswith(PREFIX)}


def _read_toml(path: str | None, problems: list[str]) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        found = tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        problems.append(f"{PREFIX}CONFIG: {path} cannot be read: {error}")
        return {}
    known = {f.name for f in fields(Config)}
    problems.extend(f"{path}: there is no setting {name!r}" for name in found if name not in known)
    return found


def _raw_value(
    name: str, environ: Mapping[str, str], from_toml: Mapping[str, Any], problems: list[str]
) -> Any:
    variable = PREFIX + name.upper()
    if variable in environ:
        return environ[variable]
    if variable + "_FILE" in environ:
        try:
            return Path(environ[variable + "_FILE"]).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            problems.append(f"{variable}_FILE cannot be read: {error}")
            return None
    if name == "database_url" and environ.get("DATABASE_URL"):
        return environ["DATABASE_URL"]
    return from_toml.get(name)


def _parse(
    name: str, kind: Any, raw: Any, bounds: Mapping[str, Any], problems: list[str]
) -> Any | None:
    wanted, *_none = get_args(kind) or (kind,)
    try:
        value = _convert(wanted, raw)
    except (KeyError, TypeError, ValueError, OverflowError):
        problems.append(f"{name}: {raw!r} is not {_WORDS[wanted]}")
        return None
    least, most = bounds["least"], bounds["most"]
    if (least is not None and value < least) or (most is not None and value > most):
        span = f"at least {least}" if most is None else f"between {least} and {most}"
        problems.append(f"{name}: {value} must be {span}")
        return None
    return value


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _convert(wanted: type, raw: Any) -> Any:
    if wanted is bool:
        return raw if isinstance(raw, bool) else _TRUTHS[str(raw).lower()]
    if isinstance(raw, bool) or (wanted is str and not isinstance(raw, str)):
        raise TypeError(raw)
    if wanted is int and isinstance(raw, float):
        raise TypeError(raw)  # int() would cut it short
    value = wanted(raw)
    if wanted is float and not isfinite(value):
        raise ValueError(raw)
    return value


_CHOICES = {
    "key_environment": ENVIRONMENTS,
    "log_level": ("debug", "info", "warning", "error"),
    "log_format": ("console", "json"),
    "stall_action": ("log", "exit"),
}


def _contradictions(config: Config) -> list[str]:
    found = []
    if config.node_ttl < 3 * config.heartbeat:
        found.append(
            f"node_ttl ({config.node_ttl}) must be at least three heartbeats ({config.heartbeat} "
            "each), or one lost beat makes a living node look dead"
        )
    if config.lease <= config.node_ttl:
        found.append(f"lease ({config.lease}) must be longer than node_ttl ({config.node_ttl})")
    if config.tls_certificate is None and (config.tls_key or config.tls_client_ca):
        found.append("tls_key and tls_client_ca mean nothing without tls_certificate")
    if config.tls_client_required and config.tls_client_ca is None:
        found.append("tls_client_required needs tls_client_ca: whose certificates are good?")
    for name, choices in _CHOICES.items():
        if getattr(config, name) not in choices:
            words = f"{', '.join(choices[:-1])} or {choices[-1]}"
            found.append(f"{name}: {getattr(config, name)!r} is not {words}")
    return found
