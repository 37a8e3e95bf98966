"""Archiving: an operator's command, run for each table of old history before it is dropped."""

import asyncio
import os
import signal
import tempfile
from asyncio.subprocess import DEVNULL
from collections.abc import Mapping
from typing import IO

import structlog

from mainspring.subprocesses import killed_with_parent

log = structlog.get_logger()

_LONGEST = 3600.0
_LAST_WORDS = 2000


class ArchiveCommand:
    """A line for the shell that is told in its environment which table to archive, and where the
    database is. Status 0 means that the table may be dropped; with any other it is kept."""

    def __init__(self, command: str, environment: Mapping[str, str], database_url: str) -> None:
        self._command = command
        self._environment = {**environment, "DATABASE_URL": database_url}

    async def __call__(self, table: str) -> bool:
        # A file and no pipe: nobody has to read along, and what the command leaves running cannot
        # hold it open.
        with tempfile.TemporaryFile() as output:
            status = await self._run(table, output)
            if status == 0:
                log.info("archived a table", action="house.archived", table=table)
                return True
            log.error(
                "a table could not be archived; it is kept",
                action="house.archive_failed",
                table=table,
                status=f"not done after {_LONGEST:g} s" if status is None else status,
                output=_end_of(output),
            )
            return False

    async def _run(self, table: str, output: IO[bytes]) -> int | None:
        """Return its exit status; None when it took too long. It ends with us at the latest."""
        process = await asyncio.create_subprocess_exec(
            *killed_with_parent(),
            *("sh", "-c", self._command),
            stdin=DEVNULL,
            stdout=output,
            stderr=output,
            env={**self._environment, "MAINSPRING_ARCHIVE_TABLE": table},
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(_LONGEST):
                return await process.wait()
        except TimeoutError:
            return None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


def _end_of(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _LAST_WORDS))
    return output.read().decode("utf-8", "replace").strip()
