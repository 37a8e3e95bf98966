"""The frame of every command: read the settings, run, and print errors in one line each."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import typer
import uvloop
from msgspec import UNSET

from mainspring.config import Config, load
from mainspring.errors import ConfigError, MainspringError, RequestError
from mainspring.sdk.client import Client
from mainspring.sdk.environment import AddressFields

T = TypeVar("T")

_TIMEOUT = 5.0
"""Seconds: a person waits, who would rather know that there is no answer."""


def load_config(**overrides: Any) -> Config:
    """Return the settings, or print all that is wrong with them and exit with status 2."""
    with explaining():
        return load(**overrides)


@contextmanager
def explaining() -> Iterator[None]:
    """Print what is wrong with the settings, a line each, and exit with status 2."""
    try:
        yield
    except ConfigError as error:
        for problem in error.problems:
            typer.echo(f"mainspring: {problem}", err=True)
        raise typer.Exit(2) from None


def call(method: str, path: str, body: object = UNSET, **query: object) -> Any:
    """Call the API that the settings name, and return its answer; print an error and exit."""
    with reporting():
        client = Client(**api_of(load_config()), timeout=_TIMEOUT)
        return client.call(method, path, body, query)


def api_of(config: Config) -> AddressFields:
    """Return where the settings say that the API is, and how it is reached."""
    return {
        "url": config.url,
        "api_key": config.api_key,
        "ca": config.api_ca,
        "proxy": config.proxy,
        "client_cert": config.client_cert,
        "client_key": config.client_key,
    }


@contextmanager
def reporting() -> Iterator[None]:
    """Print an error of ours and exit with status 1."""
    try:
        yield
    except MainspringError as error:
        lines = [str(error)]
        if isinstance(error, RequestError):
            lines = [f"{error.title}: {error.detail}", *map(str, error.problems)]
        lines += getattr(error, "__notes__", ())
        typer.echo("mainspring: " + "\n  ".join(lines), err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end on an event loop of its own, and return the result."""
    with reporting(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)
