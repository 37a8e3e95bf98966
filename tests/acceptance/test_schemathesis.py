"""The API and its own description agree: Schemathesis tries every operation of a real node.

Data that fits the document is taken, data that does not is refused, and every answer is one that
the document promises; then the links are followed: create, read, change, cancel. Some runs go side
by side, for time; a failure is printed with a command that repeats the request.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.cluster import Cluster

SUPPORT = Path(__file__).resolve().parents[1] / "support"
# Either may end the key that the run itself uses: they are tried last.
FATAL = ("revokeKey", "deleteTenant")
MAKERS = ("createKey", "createTenant")
YEARS = 366 * 86400
MOST = 100  # tasks in a batch; the hooks say so too
PARTS = ("^/v1/tasks", "^/v1/(schedules|calendars)")


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_the_document_is_true(database_url: str, tmp_path: Path) -> None:
    async with Cluster(database_url, tmp_path) as cluster:
        node = await cluster.start(
            horizon=100 * YEARS, secrets_key="ab" * 32, max_batch=MOST, longest_poll=0.05
        )
        key = (await cluster.operator()).key
        others = f"--exclude-path-regex={'|'.join(PARTS)}"
        runs = await asyncio.gather(
            *(schemathesis(tmp_path, node.url, key, f"--include-path-regex={p}") for p in PARTS),
            schemathesis(tmp_path, node.url, key, others, *named("exclude", FATAL)),
        )
        runs.append(await schemathesis(tmp_path, node.url, key, *named("include", FATAL + MAKERS)))
        assert node.alive
        failed = [said for status, said in runs if status]
        assert not failed, "\n".join(failed)


def named(what: str, operations: Sequence[str]) -> list[str]:
    return [word for name in operations for word in (f"--{what}-operation-id", name)]


async def schemathesis(directory: Path, url: str, key: str, *selection: str) -> tuple[int, str]:
    """All phases and all checks; answers the exit status and what it printed."""
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("schemathesis")),
        *("--config-file", str(SUPPORT / "schemathesis.toml"), "run", f"{url}/openapi.json"),
        *("--header", f"Authorization: Bearer {key}", "--seed", "1"),
        *("--no-shrink", "--continue-on-failure", "--suppress-health-check", "all"),
        *("--checks", "all", "--request-timeout", "30", "--max-response-time", "30"),
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
