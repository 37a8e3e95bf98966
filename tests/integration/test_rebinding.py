"""Names that lie: what they resolve to is judged when it is dialled, and not before."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.dns_server import dns_server
from support.receivers import answer, answering, receiver

NAMES = "127.0.0.153"
HOSTILE = [
    *("127.0.0.2", "10.0.0.1", "169.254.169.254", "192.168.1.1", "172.16.0.1", "100.64.0.1"),
    *("0.0.0.0", "224.0.0.1", "192.0.2.1", "::1", "fd00::1", "::ffff:127.0.0.2", "2002:7f00:2::1"),
    *("64:ff9b::7f00:2", "2001:0:7f00:2::1", "fe80::1"),
]
CLOSING = answer(200, b"{}", connection="close")

Need = Callable[[str, Path | None], Path]


@pytest.fixture
def resolver(need_server: Need, tmp_path: Path) -> Callable[[Sequence[str]], list[str]]:
    """A command that runs another one with our name server in place of the machine's."""
    unshare = shutil.which("unshare") if os.geteuid() == 0 and _may_mount() else None
    program = need_server("unshare as root (for DNS rebinding)", Path(unshare) if unshare else None)
    mine = tmp_path / "resolv.conf"
    mine.write_text(f"nameserver {NAMES}\noptions timeout:1 attempts:1\n")

    def command(wrapped: Sequence[str]) -> list[str]:
        script = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
        return [str(program), "--mount", "sh", "-c", script, str(mine), *wrapped]

    return command


def _may_mount() -> bool:
    probe = ["unshare", "--mount", "true"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


async def send(command: Callable[[Sequence[str]], list[str]], urls: Sequence[str]) -> list[Any]:
    script = str(Path(__file__).parents[1] / "support" / "sending.py")
    process = await asyncio.create_subprocess_exec(
        *command([sys.executable, script, *urls]), stdout=subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    return [json.loads(line) for line in out.splitlines()]


async def test_an_answer_that_changes_is_judged_anew(
    resolver: Callable[[Sequence[str]], list[str]],
) -> None:
    places = ["127.0.0.1", "127.0.0.2", "127.0.0.1", "10.0.0.1"]

    def answers(_name: str, nth: int) -> list[str]:
        return places[nth : nth + 1]

    async with (
        dns_server(NAMES, answers),
        receiver(answering(CLOSING), "0.0.0.0") as there,
    ):
        url = f"http://rebind.test:{there.port}/"
        replies = await send(resolver, [url] * len(places))
        assert [(status, trouble) for status, trouble, _ in replies] == [
            (200, None),
            (0, "blocked"),
            (200, None),
            (0, "blocked"),
        ]
        assert there.connections == 2


async def test_of_several_answers_only_the_allowed_is_dialled(
    resolver: Callable[[Sequence[str]], list[str]],
) -> None:
    async with (
        dns_server(NAMES, lambda _name, _nth: ["127.0.0.2", "127.0.0.1", "127.0.0.3"]),
        receiver(answering(CLOSING), "127.0.0.1") as there,
    ):
        url = f"http://several.test:{there.port}/"
        replies = await send(resolver, [url] * 3)
        assert [status for status, _, _ in replies] == [200] * 3


async def test_names_of_hostile_places_reach_nothing(
    resolver: Callable[[Sequence[str]], list[str]],
) -> None:
    async with (
        dns_server(NAMES, lambda name, _nth: [HOSTILE[int(name.split(".")[0][1:])]]),
        receiver(answering(CLOSING), "0.0.0.0") as there,
    ):
        urls = [f"http://n{n}.test:{there.port}/" for n in range(len(HOSTILE))]
        replies = await send(resolver, urls)
        for place, (status, trouble, message) in zip(HOSTILE, replies, strict=True):
            assert status == 0, place
            # Without IPv6 on the machine some of these do not even resolve.
            allowed = (
                {"blocked"} if "." in place and ":" not in place else {"blocked", "connection"}
            )
            assert trouble in allowed, (place, message)
        assert there.connections == 0
