"""Running servers in the foreground: start, say where, wait for a signal, stop cleanly."""

import asyncio
import gc
import resource
import secrets
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import typer

from mainspring import wiring
from mainspring.config import Config
from mainspring.observe.logging import set_up_logging

_DEV_SCOPES = frozenset({"read", "write", "work", "admin"})
_DEV_GRACE = 2.0
# In development the receivers are on this very machine.
_DEV_EGRESS = "127.0.0.0/8,::1/128"


async def serve(config: Config) -> None:
    """One node, until SIGTERM or Ctrl-C."""
    set_up_logging(config.log_level, config.log_format)
    _allow_many_connections()
    server = wiring.Server(config)
    stop = _stop_signal()
    await server.start()
    _calm_collector()
    typer.echo(f"mainspring listens on {server.url}")
    await stop.wait()
    await server.stop()


async def develop(config: Config, data: Path) -> None:
    """One node on a private PostgreSQL that lives and dies with it."""
    set_up_logging(config.log_level, config.log_format)
    _allow_many_connections()
    stop = _stop_signal()
    database = wiring.embedded_server(data)
    try:
        url = await asyncio.to_thread(database.start)
        config = replace(
            for_development(config),
            database_url=url,
            secrets_key=config.secrets_key or _dev_secrets_key(data),
        )
        await wiring.migrate(config)
        server = wiring.Server(config)
        await server.start()
        _calm_collector()
        key = await _dev_key(server, config, data)
        typer.echo(_welcome(server.url, key, data))
        await stop.wait()
        typer.echo("stopping …")
        await server.stop()
    finally:
        await asyncio.to_thread(database.stop)


def for_development(config: Config) -> Config:
    """The settings without what they say of other databases: the private one alone is migrated and
    used, whatever this shell was told about the one in production."""
    return replace(
        config,
        database_url=None,
        direct_database_url=None,
        database_pooler=False,
        database_ca=None,
        grace=min(config.grace, _DEV_GRACE),
        egress_allow=config.egress_allow or _DEV_EGRESS,
        key_environment="dev",
    )


def _calm_collector() -> None:
    """Tasks on their way are many small objects without cycles: looking for cycles among them again
    and again took a tenth of the processor, and a look at all of them stalls a node with a full
    window for a tenth of a second. What has cycles dies young: the old are hardly looked at."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 1000)


def _allow_many_connections() -> None:
    """Every open webhook is a descriptor; the usual soft limit of 1,024 is for programs that still
    use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # some systems promise more than they give
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _stop_signal() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def _dev_key(server: wiring.Server, config: Config, data: Path) -> str:
    """The key of tenant `default` with all scopes that is also an operator: in development only.

    It is the one the user chose, or else one that is made once and kept beside the data.
    """
    kept = data / "api-key"
    secret = config.api_key or (kept.read_text().strip() if kept.exists() else None)
    if secret is None:
        secret = wiring.new_key(server.config).secret
        kept.touch(mode=0o600)
        kept.write_text(secret)
    await wiring.add_development_key(server, secret, _DEV_SCOPES)
    return secret


def _dev_secrets_key(data: Path) -> str:
    """A key for sealing secrets that is made once and kept beside the data: in development only."""
    kept = data / "secrets-key"
    if not kept.exists():
        kept.touch(mode=0o600)
        kept.write_text(secrets.token_hex(32))
    return kept.read_text().strip()


def _welcome(url: str, key: str, data: Path) -> str:
    return f"""
Mainspring is running.

  API       {url}
  API key   {key}
  data      {data}

Schedule something for ten seconds from now:

  curl -s {url}/v1/tasks -H 'Authorization: Bearer {key}' \\
    -H 'Content-Type: application/json' \\
    -d '{{"target": {{"type": "handler", "name": "mainspring.noop"}}, "delay": 10}}'

Read what is there:

  curl -s {url}/v1/tasks -H 'Authorization: Bearer {key}'

Ctrl-C stops it; the data stays.
"""
