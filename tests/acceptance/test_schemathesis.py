"""The API and its own description agree: Schemathesis tries every operation of a real node.

Data that fits the document is taken, data that does not is refused, and every answer is one that
the document promises; then the links are followed: create, read, change, cancel. Some runs go side
by side, for time; a failure is printed with a command that repeats the request.
"""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from support.cluster import Cluster

SUPPORT = Path(__file__).resolve().parents[1] / "support"
# Either would end the key that the run itself uses.
LEFT_OUT = ("revokeKey", "deleteTenant")
YEARS = 366 * 86400
PARTS = ("^/v1/tasks", "^/v1/(schedules|calendars)")


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_the_document_is_true(database_url: str, tmp_path: Path) -> None:
    async with Cluster(database_url, tmp_path) as cluster:
        node = await cluster.start(horizon=200 * YEARS, secrets_key="ab" * 32)
        key = (await cluster.operator()).key
        runs = await asyncio.gather(
            *(schemathesis(tmp_path, node.url, key, f"--include-path-regex={p}") for p in PARTS),
            schemathesis(tmp_path, node.url, key, f"--exclude-path-regex={'|'.join(PARTS)}"),
        )
        assert node.alive
        failed = [said for status, said in runs if status]
        assert not failed, "\n".join(failed)


async def schemathesis(directory: Path, url: str, key: str, *selection: str) -> tuple[int, str]:
    """All phases and all checks; answers the exit status and what it printed."""
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("schemathesis")),
        *("--config-file", str(SUPPORT / "schemathesis.toml"), "run", f"{url}/openapi.json"),
        *("--header", f"Authorization: Bearer {key}", "--seed", "1"),
        *("--no-shrink", "--continue-on-failure", "--suppress-health-check", "all"),
        *("--checks", "all", "--request-timeout", "30", "--max-response-time", "30"),
        *(word for name in LEFT_OUT for word in ("--exclude-operation-id", name)),
        *selection,
        cwd=directory,
        env={
            **os.environ,
            "PYTHONPATH": str(SUPPORT.parent),
            "SCHEMATHESIS_HOOKS": "support.schemathesis_hooks",
            "NO_COLOR": "1",
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode(errors="replace")
