"""Running servers in the foreground: start, say where, wait for a signal, stop cleanly."""

import asyncio
import gc
import signal
from dataclasses import replace
from pathlib import Path

import typer

from mainspring import wiring
from mainspring.config import Config
from mainspring.observe.logging import set_up_logging

_DEV_SCOPES = frozenset({"read", "write", "work", "admin"})
_DEV_GRACE = 2.0


async def serve(config: Config) -> None:
    """One node, until SIGTERM or Ctrl-C."""
    set_up_logging(config.log_level, config.log_format)
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
    stop = _stop_signal()
    database = wiring.embedded_server(data)
    try:
        url = await asyncio.to_thread(database.start)
        config = replace(
            config,
            database_url=url,
            grace=min(config.grace, _DEV_GRACE),
            key_environment="dev",
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


def _calm_collector() -> None:
    """Tasks on their way are many small objects without cycles: looking for cycles among them again
    and again took a tenth of the processor."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


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
