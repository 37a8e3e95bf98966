"""Behind PgBouncer in transaction mode there is no LISTEN and no session: all works, by polling."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from support.cluster import Cluster
from support.traffic import Traffic, mixed
from support.waiting import eventually

pytestmark = pytest.mark.slow

_SETTINGS = """
[databases]
* = host={host} port=5432 user={user} password={password}
[pgbouncer]
pool_mode = transaction
default_pool_size = 4
max_client_conn = 200
auth_type = any
listen_addr =
listen_port = 5432
unix_socket_dir = {directory}
ignore_startup_parameters = extra_float_digits
"""


@pytest.fixture
async def pooled_url(
    database_url: str, tmp_path: Path, need_server: Callable[[str, Path | None], Path]
) -> AsyncIterator[str]:
    """The test's database through a PgBouncer of its own."""
    found = shutil.which("pgbouncer", path=os.pathsep.join([os.defpath, "/usr/sbin"]))
    program = need_server("pgbouncer", Path(found) if found else None)
    process = start_pgbouncer(program, database_url, tmp_path)
    try:
        await eventually(
            lambda: asyncio.to_thread((tmp_path / ".s.PGSQL.5432").exists),
            within=10,
            what="pgbouncer listens",
        )
        parts = urlsplit(database_url)
        yield parts._replace(query=f"host={quote(str(tmp_path))}&port=5432").geturl()
    finally:
        process.kill()
        process.wait()
        print((tmp_path / "pgbouncer.log").read_text())


async def test_a_cluster_behind_a_pooler(cluster: Cluster, pooled_url: str) -> None:
    tenant, traffic = await cluster.tenant(), Traffic()
    nodes = await cluster.pair(database_url=pooled_url, database_pooler="true")
    for _ in range(10):
        for node in nodes:
            await traffic.send(node.client(tenant), mixed())
    await cluster.evidence.all_finished(traffic.acknowledged, within=20)
    await cluster.evidence.sound(traffic.acknowledged)
    for node in nodes:
        assert '"level": "error"' not in node.output()
    nodes[0].kill()
    await traffic.send(nodes[1].client(tenant), 5 * mixed())
    await cluster.evidence.all_finished(traffic.acknowledged, within=20)
    await cluster.evidence.sound(traffic.acknowledged)


def start_pgbouncer(program: Path, database_url: str, directory: Path) -> subprocess.Popen[bytes]:
    parts = urlsplit(database_url)
    settings = _SETTINGS.format(
        host=parse_qs(parts.query)["host"][0],
        user=parts.username,
        password=parts.password,
        directory=directory,
    )
    file = directory / "pgbouncer.ini"
    file.write_text(settings)
    # It refuses to run as root: under root, look like somebody else.
    guise = ["unshare", "--user", "--map-user=65534"] if os.geteuid() == 0 else []
    with (directory / "pgbouncer.log").open("wb") as log:
        return subprocess.Popen([*guise, program, file], stdout=log, stderr=log)
