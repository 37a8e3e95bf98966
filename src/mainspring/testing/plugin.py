"""Fixtures for pytest, found by their entry point.

`mainspring_server`: a whole Mainspring, started once for all tests that ask for it.
`virtual_time`: gives a VirtualTime for an app, and ends it with the test.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mainspring.sdk.app import App
    from mainspring.testing.server import MainspringServer
    from mainspring.testing.virtual import VirtualTime


@pytest.fixture(scope="session")
def mainspring_server() -> "Iterator[MainspringServer]":
    """A running Mainspring with a PostgreSQL of its own: `.url`, `.api_key`, `.client()` …"""
    from mainspring.testing.server import MainspringServer

    with MainspringServer() as server:
        yield server


@pytest.fixture
def virtual_time() -> "Iterator[Callable[..., VirtualTime]]":
    """`world = virtual_time(app, start=…)`, then `world.advance(days=3)`."""
    from mainspring.testing.virtual import VirtualTime

    with ExitStack() as stack:

        def begin(app: "App", **options: Any) -> VirtualTime:
            return stack.enter_context(VirtualTime(app, **options))

        yield begin
