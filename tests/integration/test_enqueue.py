"""Tasks that a caller's own transaction creates, by a function in the database."""

import asyncio
import json
from collections.abc import AsyncIterator
from urllib.parse import urlsplit
from uuid import UUID

import asyncpg
import pytest

from mainspring.domain.urls import url_problem
from support.workers import LocalNode, open_local_node

ENQUEUE = "SELECT mainspring.enqueue('work', '{\"n\": 1}')"


@pytest.fixture
async def local_node(database_url: str) -> AsyncIterator[LocalNode]:
    async with open_local_node(database_url) as opened:
        yield opened


@pytest.fixture
async def app(database_url: str, local_node: LocalNode) -> AsyncIterator[asyncpg.Connection]:
    """A connection of an application that may enqueue for the tenant, and nothing else."""
    owner = await asyncpg.connect(database_url)
    role = f"app_{urlsplit(database_url).path[1:]}"
    await owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
    await owner.execute(f"SELECT mainspring.allow_enqueue('{role}', 'workshop')")
    connection = await asyncpg.connect(database_url, user=role, password="secret")
    yield connection
    await connection.close()
    await owner.execute(f"DROP OWNED BY {role}")
    await owner.execute(f"DROP ROLE {role}")
    await owner.close()


async def test_what_commits_runs_and_what_is_undone_never_was(
    local_node: LocalNode, app: asyncpg.Connection
) -> None:
    worker = local_node.worker()
    transaction = app.transaction()
    await transaction.start()
    undone = await app.fetchval(ENQUEUE)
    assert await worker.lease(wait=0.5) == []
    await transaction.rollback()
    assert (await local_node.client.get(f"/v1/tasks/{undone}")).status == 404
    asked = asyncio.create_task(worker.lease(wait=20))
    async with app.transaction():
        done: UUID = await app.fetchval(ENQUEUE)
        assert done.version == 7
    began = asyncio.get_running_loop().time()
    (task,) = await asked
    assert asyncio.get_running_loop().time() - began < 1.0
    assert (task["id"], task["payload"], task["target"]["name"]) == (str(done), {"n": 1}, "work")
    assert await worker.report(task, result="yes") == ["accepted"]
    read = await local_node.task(str(done))
    assert (read["state"], read["retry"]["max_attempts"]) == ("completed", 5)


async def test_every_option_arrives(local_node: LocalNode, app: asyncpg.Connection) -> None:
    made = await app.fetchval(
        """SELECT mainspring.enqueue(target => '{"type": "command", "argv": ["a", "b"]}',
            delay => '1 hour', queue => 'slow', priority => 9, name => 'nightly', timeout => 60,
            max_attempts => 2, labels => '{"team": "a"}', tags => '{gpu,ssd}',
            concurrency_key => 'k', concurrency_limit => 3)"""
    )
    read = await local_node.task(str(made))
    assert read["target"] == {"type": "command", "argv": ["a", "b"]}
    assert (read["queue"], read["priority"], read["name"]) == ("slow", 9, "nightly")
    assert (read["timeout"], read["retry"]["max_attempts"]) == (60, 2)
    assert read["labels"] == {"team": "a"}
    assert read["requires"]["tags"] == ["gpu", "ssd"]
    assert read["concurrency"] == {"key": "k", "limit": 3}
    assert (await local_node.client.post(f"/v1/tasks/{made}/run")).status == 200
    assert await local_node.worker("plain").lease(wait=0, commands=True, queues=["slow"]) == []
    fit = local_node.worker("fit")
    (task,) = await fit.lease(commands=True, queues=["slow"], tags=["gpu", "ssd"])
    assert task["id"] == str(made)


async def test_what_comes_after_its_time_is_due_when_it_is_created(
    local_node: LocalNode, app: asyncpg.Connection
) -> None:
    late = "run_at => '2020-01-01T00:00:00Z', expires_at => now() + interval '1 hour'"
    made = await local_node.task(
        await app.fetchval(f"SELECT mainspring.enqueue('work', {late})::text")
    )
    assert made["run_at"] == "2020-01-01T00:00:00Z"
    assert made["due_at"] == made["created_at"]


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "'work', target => '{}'",
        "'a b'",
        "'work', queue => 'no;such'",
        "'work', priority => 10",
        "'work', run_at => 'infinity'",
        "'work', run_at => '1969-12-31'",
        "'work', run_at => '2000-01-01', expires_at => '2001-01-01'",
        "'work', delay => '1 hour', run_at => now()",
        "'work', payload => NULL",
        "'work', (repeat('[', 65) || repeat(']', 65))::jsonb",
        "'work', (repeat('{\"a\":', 65) || '1' || repeat('}', 65))::jsonb",
        "'work', to_jsonb(repeat('a', 1048576))",
        "'work', timeout => 'NaN'",
        "'work', labels => '[1]'",
        "'work', tags => '{\"a;alone\"}'",
        "'work', concurrency_key => ''",
        'target => \'{"type": "http", "url": "file:///etc/passwd"}\'',
        'target => \'{"type": "http", "url": "http://a:99999/"}\'',
        'target => \'{"type": "http", "url": ["http://a/"]}\'',
        'target => \'{"type": "http", "url": "http://a/", "method": 5}\'',
        'target => \'{"type": "handler", "name": 5}\'',
        'target => \'{"type": "handler", "name": null}\'',
        'target => \'{"type": "handler"}\'',
        'target => \'{"type": "command", "argv": []}\'',
        'target => \'{"type": "command", "argv": [1]}\'',
        'target => \'{"type": "shell"}\'',
        "'work', expires_at => '2000-01-01'",
    ],
)
async def test_what_makes_no_sense_is_refused(app: asyncpg.Connection, arguments: str) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError):
        await app.fetchval(f"SELECT mainspring.enqueue({arguments})")


PLAIN_URLS = """
http://a:99999/ http://a:0/ http://a:/ http://a:65535/ http://a:080/x http://a:b/ https://a:-1/
http://a:1:2/ http://[::1/x http://[::1]/x http://[::1]:80 http://[::ffff:1.2.3.4]/
http://[1.2.3.4]/ http://[::g]/ http://[fe80::1%25lo]/ http://::1/ http://a]/ http://\u2100.com/
http://bücher.example/ http://xn--bcher-kva.example/ http://1.2.3.4/ http://1.2.3.4./
http://1.2.3/ http://256.1.1.1/ http://01.2.3.4/ http://0x7f.1/ http://0x/ http://a.0x7f/
http://2130706433/ http://1.example/ http://a.1/ http://a_b~c-d.example./x http://a..b/
http://.a/ http://a./ http://. http:// http:///x http:a https:/a HTTPS://A.example?x=1#y
http://a?b@c http://u@a/ http://u:p@a/ http://a/@b http://a\\b/ http://a/\\b ftp://a/ //a/
http://a/ü http://a%41/ http://-a-/
"""
URLS = PLAIN_URLS.split()
URLS += [
    f"http://{'a' * 63}.b/",
    f"http://{'a' * 64}.b/",
    f"http://{'a.' * 126}b/",
    f"http://{'a.' * 127}b/",
]
URLS += ["http://a /", "http://a/ b", "http://a/\x7f", "http://a/\n", " http://a/"]


async def test_urls_are_judged_as_by_the_api(database_url: str) -> None:
    owner = await asyncpg.connect(database_url)
    taken = await owner.fetch(
        "SELECT url FROM unnest($1::text[]) AS url WHERE mainspring.is_callable(url)", URLS
    )
    await owner.close()
    assert [row["url"] for row in taken] == [url for url in URLS if url_problem(url) is None]


async def test_a_role_enqueues_for_its_own_tenant_only(
    local_node: LocalNode, app: asyncpg.Connection, database_url: str
) -> None:
    await local_node.server.keys.ensure_tenant("rival")
    denied = asyncpg.InsufficientPrivilegeError
    for statement in (
        "SELECT mainspring.enqueue('work', tenant => 'rival')",
        "SELECT mainspring.enqueue('work', tenant => 'nobody')",
        "SELECT mainspring.allow_enqueue(current_user::name, 'rival')",
        "SELECT mainspring.tenant_of_session('rival')",
        "INSERT INTO enqueue_roles VALUES (current_user::name, 2)",
        "SELECT * FROM tasks",
        "DELETE FROM wakes",
    ):
        with pytest.raises(denied):
            await app.fetchval(statement)
    # A table of the caller's own of the same name changes nothing.
    await app.execute("CREATE TEMP TABLE tasks (LIKE pg_class); SET search_path = pg_temp, public")
    made = await app.fetchval("SELECT mainspring.enqueue('work', tenant => 'workshop')")
    assert (await local_node.client.get(f"/v1/tasks/{made}")).status == 200
    owner = await asyncpg.connect(database_url)
    theirs = await owner.fetchval("SELECT mainspring.enqueue('work', tenant => 'rival')")
    assert (await local_node.client.get(f"/v1/tasks/{theirs}")).status == 404
    with pytest.raises(denied):
        await owner.fetchval("SELECT mainspring.enqueue('work', tenant => 'nobody')")
    await owner.close()


@pytest.mark.parametrize(
    "payload",
    [
        "[" * 64 + "]" * 64,
        json.dumps(["[{" * 100, "\\", '"[[', "]" * 100]),
        json.dumps([{"a": [n]} for n in range(200)]),
    ],
)
async def test_what_is_not_nested_too_deeply_is_taken(
    local_node: LocalNode, app: asyncpg.Connection, payload: str
) -> None:
    made = await app.fetchval("SELECT mainspring.enqueue('work', $1::jsonb)", payload)
    assert (await local_node.task(str(made)))["payload"] == json.loads(payload)


async def test_what_others_create_beside_the_tables_is_not_called(
    local_node: LocalNode, app: asyncpg.Connection, database_url: str
) -> None:
    """The function acts for the owner of the tables: it must run nobody else's code."""
    owner = await asyncpg.connect(database_url)
    await owner.execute(
        """CREATE FUNCTION public.jsonb_build_object(text, text, text, text) RETURNS jsonb
               LANGUAGE plpgsql AS $$BEGIN RAISE 'this is somebody else''s'; END$$"""
    )
    await owner.close()
    assert await app.fetchval(ENQUEUE)
