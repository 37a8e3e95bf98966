"""`mainspring dev`: one node on a private PostgreSQL that lives and dies with it."""

import asyncio
import os
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import typer

from mainspring.cli import serving
from mainspring.config import Config
from mainspring.errors import ConfigError, ServerError
from mainspring.wiring import commands, settings
from mainspring.wiring.server import Server

_GRACE = 2.0
# The receivers are on this very machine.
_EGRESS = "127.0.0.0/8,::1/128"


def default_data() -> Path:
    """Return the default directory of the data."""
    try:
        return Path.home() / ".mainspring" / "dev"
    except RuntimeError:
        raise ConfigError(["there is no home directory: name one with --data"]) from None


def for_development(config: Config) -> Config:
    """Return the settings for the private database, without those of any other: whatever the
    environment says about the one in production, it is not touched."""
    return replace(
        config,
        database_url="",  # known once it runs
        direct_database_url=None,
        database_pooler=False,
        database_ca=None,
        grace=min(config.grace, _GRACE),
        stall_action="log",  # nobody would start it again
        egress_allow=config.egress_allow or _EGRESS,
        key_environment="dev",
    )


async def develop(config: Config, data: Path) -> None:
    """Run until SIGTERM or Ctrl-C, which also end a start that takes long."""
    stop = serving.set_up(config)
    development = _Development(config, data)
    try:
        server = await serving.run_unless_stopped(stop, development.start())
        if server is None:
            return
        try:
            await serving.run_unless_stopped(stop, development.watch(server))
        finally:
            typer.echo("stopping …")
            await server.stop()
    finally:
        await development.stop()


class _Development:
    """A node, its database and the files beside it."""

    def __init__(self, config: Config, data: Path) -> None:
        self._config = config
        self._data = data
        self._database = commands.embedded_server(data)

    async def start(self) -> Server:
        url = await self._database.start()
        sealing = self._config.secrets_key or self._kept(
            "secrets-key", lambda: secrets.token_hex(32)
        )
        config = replace(self._config, database_url=url, secrets_key=sealing)
        await commands.migrate(config)
        server = await serving.start(config)
        try:
            key = await self._add_key(server)
            typer.echo(_welcome(server.url, key, self._data))
        except BaseException:
            await server.stop()
            raise
        return server

    async def watch(self, server: Server) -> None:
        """Keep the database running; raises when it, or the node, cannot go on."""
        tasks = [asyncio.create_task(work) for work in (self._database.keep(), server.ended())]
        await serving.wait_for_first(*tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def stop(self) -> None:
        await self._database.stop()

    async def _add_key(self, server: Server) -> str:
        """Add the key that the user chose, or else one that is made once and kept with the data."""
        secret = self._config.api_key or self._kept(
            "api-key", lambda: settings.new_key(server.config).secret
        )
        await commands.add_development_key(server, secret)
        return secret

    def _kept(self, name: str, make: Callable[[], str]) -> str:
        try:
            return kept(self._data / name, make)
        except OSError as problem:
            raise ServerError(f"{self._data} cannot be used: {problem}") from problem


def kept(file: Path, make: Callable[[], str]) -> str:
    """Return the secret in a file, made now if there is none, or an empty one as a full disk may
    leave. It is written whole or not at all."""
    if file.exists() and (found := file.read_text().strip()):
        return found
    secret = make()
    aside = file.with_name(f"{file.name}.new")
    aside.unlink(missing_ok=True)
    with open(os.open(aside, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "w") as out:
        out.write(secret)
        out.flush()
        os.fsync(out.fileno())
    aside.replace(file)
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
