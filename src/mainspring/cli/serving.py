"""Running servers in the foreground: start, say where, wait for a signal, stop cleanly."""

import asyncio
import gc
import resource
import signal
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import structlog
import typer

from mainspring.config import Config, unknown_settings
from mainspring.observe.logging import set_up_logging
from mainspring.wiring.server import Server

log = structlog.get_logger()
T = TypeVar("T")


async def serve(config: Config) -> None:
    """Run one node, until SIGTERM or Ctrl-C."""
    stop = set_up(config)
    server = await run_unless_stopped(stop, start(config))
    if server is None:
        return
    typer.echo(f"mainspring listens on {server.url}")
    try:
        await run_unless_stopped(stop, server.ended())
    finally:
        await server.stop()


def set_up(config: Config) -> asyncio.Event:
    """Set up logging and limits; return the event that SIGTERM and Ctrl-C set from now on."""
    set_up_logging(config.log_level, config.log_format)
    for problem in unknown_settings():
        log.warning(problem, action="config.unknown_setting")
    _allow_many_connections()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def start(config: Config) -> Server:
    """Start a node, and return it."""
    server = Server(config)
    await server.start()
    _tune_collector()
    return server


async def run_unless_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Do this unless a stop is asked for first: then cancel it, and return None."""
    doing = asyncio.create_task(work)
    await wait_for_first(doing, asyncio.create_task(stop.wait()))
    return None if doing.cancelled() else doing.result()


async def wait_for_first(*tasks: asyncio.Task[Any]) -> None:
    """Wait until one of these has ended, and end the others with it."""
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _tune_collector() -> None:
    """Make the garbage collector look rarely at old objects. Tasks are many small objects without
    cycles: scanning them often took a tenth of the processor, and a scan of all stalls a node with
    a full window for a tenth of a second. Objects with cycles are short-lived."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 1000)


def _allow_many_connections() -> None:
    """Raise the limit of open descriptors, of which each connection needs one, to the maximum."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # some systems promise more than they give
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
