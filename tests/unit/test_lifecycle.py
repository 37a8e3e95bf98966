"""Background loops are started again, whatever happens, also where nobody can be told of it."""

import asyncio
import errno
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
import structlog

from mainspring import lifecycle
from mainspring.lifecycle import Supervisor
from mainspring.observe.logging import set_up_logging


@pytest.fixture(autouse=True)
def usual_logging() -> Iterator[None]:
    yield
    structlog.reset_defaults()


class Crashing:
    """A loop that crashes once, and says when it runs again."""

    def __init__(self) -> None:
        self.again = asyncio.Event()
        self._runs = 0

    async def run(self) -> None:
        self._runs += 1
        if self._runs == 1:
            raise RuntimeError("once")
        self.again.set()
        await asyncio.Event().wait()


async def runs_again() -> None:
    supervisor, loop = Supervisor(), Crashing()
    supervisor.start("crashing", loop.run)
    try:
        await asyncio.wait_for(loop.again.wait(), 5)
    finally:
        await supervisor.stop()


async def test_a_loop_that_crashed_runs_again() -> None:
    await runs_again()


async def test_also_when_telling_of_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def exception(self, *_words: str, **_context: object) -> None:
            raise RuntimeError("this cannot be told")

    monkeypatch.setattr(lifecycle, "log", Broken())
    await runs_again()


class FullDisk(StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "no space left", text)


@pytest.mark.usefixtures("restored_logging")
@pytest.mark.parametrize("format", ["console", "json"])
def test_a_line_that_cannot_be_written_is_dropped(format: str) -> None:
    set_up_logging("info", format, FullDisk())
    structlog.get_logger().warning("nobody reads this", action="test.dropped")


@pytest.mark.usefixtures("restored_logging")
def test_a_stream_that_was_closed_is_borne(tmp_path: Path) -> None:
    stream = (tmp_path / "log").open("w")
    set_up_logging("info", "json", stream)
    stream.close()
    structlog.get_logger().warning("nobody reads this", action="test.dropped")
