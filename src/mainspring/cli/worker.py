"""`mainspring worker`: run the tasks of an app, and commands, on this machine."""

import asyncio
import gc
import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import typer

from mainspring.cli.running import api_of
from mainspring.config import Config
from mainspring.errors import ConfigError, MainspringError, RequestError
from mainspring.sdk.app import App, load_app
from mainspring.sdk.environment import address
from mainspring.sdk.periodic import Synced
from mainspring.sdk.transport import tls_context
from mainspring.sdk.worker.allowlist import load_allowed
from mainspring.sdk.worker.options import WorkerOptions
from mainspring.sdk.worker.worker import Worker


def prepare(
    config: Config, app_path: str | None, commands: Path | None, options: WorkerOptions
) -> Worker:
    """Load what is to be run, and return the worker; ConfigError where it cannot begin."""
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    where = address(**api_of(config))
    tls_context(where)
    if app_path is None and commands is None:
        raise ConfigError(["there is nothing to run: name an app, as in module:app, or --commands"])
    if not options.queues:
        raise ConfigError(["--queues names none: leave it out for the queue `default`"])
    app = None if app_path is None else load_app(app_path)
    if app is not None and not app.functions and commands is None:
        raise ConfigError([f"{app_path} has no tasks: decorate functions with @app.task"])
    if app is not None:
        app.use_address(where)
    allowed = None if commands is None else load_allowed(commands)
    return Worker(app, options, address=where, app_path=app_path or "", allowed=allowed)


async def work(worker: Worker) -> None:
    """Work until SIGTERM or Ctrl-C. A worker that is worn out restarts in the same process."""
    app = worker.app
    worker.replace_process = _restart
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    gc.freeze()  # what is loaded stays: no need to look through it again and again
    gc.set_threshold(50_000, 20, 20)  # executions are many small objects without cycles
    if app is not None and app.periodics:
        await _put_schedules(app)
    tidying = asyncio.create_task(_remove_schedules(app))
    try:
        await worker.run(lambda: typer.echo(_welcome(worker)))
    finally:
        tidying.cancel()
    typer.echo(f"stopped: {worker.finished} executions")
    if worker.worn_out:
        _restart()


async def _put_schedules(app: App) -> None:
    try:
        synced = await app.sync_periodic()
    except RequestError as refused:
        refused.add_note("this was about the schedules that @app.periodic declares")
        raise
    if synced.newer is not None:
        typer.echo(f"schedules are left to version {synced.newer} of {app.name}, which is newer")
    else:
        typer.echo(f"schedules in place: {', '.join(synced.names)}")
    _print_removed(synced)


async def _remove_schedules(app: App | None) -> None:
    """Remove the schedules of an app that declares none any more. The worker works without that,
    too: its key may not allow it, or the server not answer yet."""
    if app is None or app.periodics:
        return
    with suppress(MainspringError):
        _print_removed(await app.sync_periodic())


def _print_removed(synced: Synced) -> None:
    if synced.removed:
        typer.echo(f"schedules removed: {', '.join(synced.removed)}")


def _welcome(worker: Worker) -> str:
    app, options, allowed = worker.app, worker.options, worker.allowed
    handlers = sorted(app.functions) if app is not None else []
    parts = [
        f"worker {options.name} takes tasks from {worker.address.url}",
        f"queues {', '.join(options.queues)}",
    ]
    if handlers:
        shown = ", ".join(handlers[:5]) + (" …" if len(handlers) > 5 else "")
        parts.append(f"handlers {shown}")
    if allowed is not None:
        parts.append(f"commands {', '.join(allowed.names)}")
    parts.append(f"{options.concurrency} at once")
    return "; ".join(parts) + " (Ctrl-C stops it)"


def _restart() -> None:
    """Run the same command again, with fresh memory and under the same process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "mainspring", *sys.argv[1:]])
