"""The documents tell the truth: their commands are run, their answers compared, their names found.

A block that cannot be run says why, in a comment right before it: `<!-- not run: the reason -->`.
One that is meant to fail says how: `<!-- exit status: 1 -->`. One that shows a file names it:
`<!-- file: tasks.py -->`; the file is there for the blocks after it. A block of JSON or text right
after a command shows its output; ids, times and measured numbers may differ.
"""

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
import typer
from typer.core import TyperGroup

import mainspring
from mainspring import crash_points
from mainspring.cli.main import app
from mainspring.config import Config, load
from mainspring.domain.task import RUN_WORKFLOW
from mainspring.execution.builtin import HANDLERS, NOOP
from mainspring.postgres import named_sql as queries
from mainspring.postgres.embedded_programs import find_binaries
from mainspring.sdk.enqueue import FUNCTION
from support.docs import (
    DOCUMENTS,
    GENERATED,
    ROOT,
    Block,
    anchors,
    blocks,
    exposed_name,
    links,
    metrics,
    regenerated,
    shape,
)
from support.process import MainspringProcess
from support.waiting import eventually

README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"
OPERATIONS = ROOT / "docs" / "operations.md"
CONFIGURATION = ROOT / "docs" / "configuration.md"
API = ROOT / "docs" / "api.md"
WORKFLOWS = ROOT / "docs" / "workflows.md"
SDK = ROOT / "docs" / "sdk.md"
WORKERS = ROOT / "docs" / "workers.md"
COMMANDS = ROOT / "docs" / "commands.md"
WEBHOOKS = ROOT / "docs" / "webhooks.md"

RUNNABLE = {"bash", "sh", "python"}
CHECKED = RUNNABLE | {"json", "mermaid", "sql", "text", "toml"}
TOURS = (README, TUTORIAL)
RUN_HERE = {*TOURS, OPERATIONS, CONFIGURATION, API, WORKERS, WORKFLOWS, SDK, COMMANDS, WEBHOOKS}
DIAGRAMS = {"flowchart", "sequenceDiagram", "stateDiagram-v2"}
LONGEST_README = 200
SOURCE = ROOT / "src" / "mainspring"
FIXTURES = {"mainspring_server"}
"""Names that look like metrics and are fixtures of pytest."""

SETTINGS = {field.name: field for field in fields(Config)}
# Read by callers, by the configuration itself, and by what archives: no settings.
OTHER_VARIABLES = {"MAINSPRING_URL", "MAINSPRING_CONFIG", "MAINSPRING_ARCHIVE_TABLE"}


# --- blocks are run ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("document", TOURS, ids=lambda path: path.stem)
async def test_the_first_tours(document: Path, tmp_path: Path) -> None:
    ports = free_ports(document)
    server = MainspringProcess(
        tmp_path / "dev.log",
        *("dev", "--port", str(ports["7070"]), "--data", str(tmp_path / ".dev" / "data")),
        environment={},
    )
    try:

        async def listens() -> bool:
            assert server.alive, server.output()
            return "Mainspring is running." in server.output()

        await eventually(listens, within=30, what="mainspring dev is running")
        await run_blocks(document, tmp_path, ports, {})
    finally:
        server.kill()


@pytest.mark.slow
@pytest.mark.parametrize("document", [API, WORKERS, WORKFLOWS, SDK], ids=lambda path: path.stem)
async def test_the_tour_of_the_api(document: Path, tmp_path: Path) -> None:
    await run_with_a_server(document, tmp_path)


@pytest.mark.slow
async def test_the_tour_of_commands(tmp_path: Path) -> None:
    """The programs of the recipes are played by one that is happy with everything."""
    stubs = tmp_path / "bin"
    stubs.mkdir()
    for name in ("docker", "kubectl", "spark-submit", "flink"):
        program = stubs / name
        program.write_text('#!/bin/sh\necho "$0" "$@"\n')
        program.chmod(0o755)
    await run_with_a_server(COMMANDS, tmp_path, stubs)


async def run_with_a_server(document: Path, tmp_path: Path, programs: Path | None = None) -> None:
    """Run a document's blocks against `mainspring dev`."""
    port, key = free_port(), "ms_dev_docs"
    server = MainspringProcess(
        tmp_path / "dev.log",
        *("dev", "--port", str(port), "--data", str(tmp_path / "data")),
        environment={"MAINSPRING_API_KEY": key},
    )
    try:

        async def listens() -> bool:
            assert server.alive, server.output()
            return "Mainspring is running." in server.output()

        await eventually(listens, within=30, what="mainspring dev is running")
        environment = {"MAINSPRING_URL": f"http://127.0.0.1:{port}", "MAINSPRING_API_KEY": key}
        if programs is not None:
            environment["PROGRAMS"] = str(programs)
        await run_blocks(document, tmp_path, {}, environment)
    finally:
        server.kill()


@pytest.mark.alone
@pytest.mark.slow
async def test_the_commands_for_operators(pg_server: str, tmp_path: Path) -> None:
    connection = await asyncpg.connect(pg_server)
    await connection.execute("CREATE DATABASE docs")
    try:
        url = urlsplit(pg_server)._replace(path="/docs").geturl()
        environment = {"DATABASE_URL": url, "PROGRAMS": str(find_binaries())}
        await run_blocks(OPERATIONS, tmp_path, free_ports(OPERATIONS), environment)
    finally:
        await connection.execute("DROP DATABASE docs WITH (FORCE)")
        await connection.close()


async def test_the_sql_is_run(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    role = "CREATE ROLE shop; CREATE TABLE public.orders (id integer, total integer);"
    await connection.execute(role + "INSERT INTO tenants (name) VALUES ('default')")
    for document in DOCUMENTS:
        for block in blocks(document):
            if block.language == "sql":
                await connection.execute(block.text)
    assert await connection.fetchval("SELECT count(*) FROM tasks JOIN orders ON total = 99") == 1
    await connection.execute("DROP OWNED BY shop; DROP ROLE shop")
    await connection.close()


async def test_the_commands_about_settings(tmp_path: Path) -> None:
    await run_blocks(CONFIGURATION, tmp_path, {}, {})


async def test_the_verifier_of_webhooks(tmp_path: Path) -> None:
    """What it says about signatures of ours is tested in test_webhook_signing.py."""
    await run_blocks(WEBHOOKS, tmp_path, {}, {})


def test_every_block_is_run_checked_or_excused() -> None:
    for document in DOCUMENTS:
        for block in blocks(document):
            assert block.language in CHECKED, f"{block.where}: nobody checks {block.language!r}"
            assert block.not_run != "", f"{block.where}: why is it not run?"
            if block.language in RUNNABLE and block.not_run is None:
                assert document in RUN_HERE, f"{block.where}: no test runs this document"


def test_what_shows_no_output_is_valid(tmp_path: Path) -> None:
    for document in DOCUMENTS:
        for block in blocks(document):
            if block.language == "json" and block.follows is None:
                json.loads(block.text)
            elif block.language == "toml" and block.file is None:
                assert tomllib.loads(block.text), f"{block.where} is empty"
                file = tmp_path / "mainspring.toml"
                file.write_text(block.text)
                load({"MAINSPRING_CONFIG": str(file)})


def test_diagrams_are_of_a_known_kind() -> None:
    """A page shows an error in place of a diagram without a kind, or with an open subgraph."""
    for document in DOCUMENTS:
        for block in blocks(document):
            if block.language == "mermaid":
                words = block.text.split()
                assert words[0] in DIAGRAMS, f"{block.where}: {words[0]!r} is no kind of diagram"
                assert words.count("subgraph") == words.count("end"), f"{block.where} is not closed"


def test_the_readme_is_a_first_page() -> None:
    """A first page of this length is read to its end; the rest belongs in docs/."""
    assert len(README.read_text().splitlines()) <= LONGEST_README


async def run_blocks(
    document: Path, directory: Path, ports: Mapping[str, int], environment: Mapping[str, str]
) -> None:
    """Run a document's blocks in order, in one shell, and compare what they say."""
    all_blocks = blocks(document)
    results = directory / "results"
    results.mkdir()
    script = "\n".join(lines_of_script(all_blocks, results))
    for port, free in ports.items():
        script = script.replace(port, str(free))
    await asyncio.to_thread(run_shell, script, directory, environment)
    for index, block in enumerate(all_blocks):
        if runs(block):
            status = int((results / f"{index}.status").read_text())
            output = (results / f"{index}.out").read_text()
            assert status == block.exit_status, f"{block.where} ended with {status}:\n{output}"
        elif block.follows is not None and runs(all_blocks[block.follows]):
            output = (results / f"{block.follows}.out").read_text()
            assert shape(output) == shape(block.text), (
                f"{block.where} shows something else:\n{output}"
            )


def runs(block: Block) -> bool:
    return block.language in RUNNABLE and block.not_run is None and block.file is None


def lines_of_script(all_blocks: Iterable[Block], results: Path) -> Iterator[str]:
    """All blocks as one script, so that functions and variables carry over."""
    yield "trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT"
    for index, block in enumerate(all_blocks):
        if block.file is not None:
            yield f"cat > {block.file} <<'FILE'\n{block.text}FILE"
        elif runs(block):
            python = block.language == "python"
            text = f"python - <<'PYTHON'\n{block.text}PYTHON\n" if python else block.text
            yield f"{{\n{text}}} >{results}/{index}.out 2>&1; echo $? >{results}/{index}.status"


def run_shell(script: str, directory: Path, environment: Mapping[str, str]) -> None:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("MAINSPRING_")}
    inherited.pop("DATABASE_URL", None)
    places = [environment.get("PROGRAMS"), str(Path(sys.executable).parent), os.environ["PATH"]]
    path = os.pathsep.join(filter(None, places))
    # Should the test run itself be killed, what the script started must not stay behind.
    setpriv = shutil.which("setpriv")
    guard = [setpriv, "--pdeathsig", "TERM"] if setpriv else []
    subprocess.run(
        [*guard, "bash", "-c", script],
        cwd=directory,
        env={**inherited, **environment, "PATH": path},
        stdin=subprocess.DEVNULL,
        timeout=90,
        check=False,
    )


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def free_ports(document: Path) -> dict[str, int]:
    """A free port for each that the document names (7070, 7071, …)."""
    named = sorted(set(re.findall(r"\b707\d\b", document.read_text())))
    sockets = {port: socket.socket() for port in named}
    for listening in sockets.values():
        listening.bind(("127.0.0.1", 0))
    found = {port: int(listening.getsockname()[1]) for port, listening in sockets.items()}
    for listening in sockets.values():
        listening.close()
    return found


# --- names exist ------------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
class TestNames:
    """What a document names, the product has."""

    def test_links(self, document: Path) -> None:
        for target in links(document):
            if urlsplit(target).scheme:
                continue
            file, _, anchor = target.partition("#")
            linked = (document.parent / file).resolve() if file else document
            assert linked.exists(), f"{target} does not exist"
            if anchor:
                assert anchor in anchors(linked), f"{target}: there is no such heading"

    def test_files(self, document: Path) -> None:
        for path in re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:\.py|/))`", document.read_text()):
            assert (SOURCE / path).exists() or (ROOT / path).exists() or path == "dist/", path

    def test_settings(self, document: Path) -> None:
        for variable in re.findall(r"MAINSPRING_[A-Z_]+", document.read_text()):
            if variable not in OTHER_VARIABLES:
                name = variable.removeprefix("MAINSPRING_").removesuffix("_FILE").lower()
                assert name in SETTINGS, f"{variable} is no setting"

    def test_defaults(self, document: Path) -> None:
        """A setting with a value after it, such as `lease` (15 s), names the default."""
        pattern = r"`([a-z_]+)`\s\((\d+(?:\.\d+)?)(?: (s|ms))?[);]"
        for name, value, unit in re.findall(pattern, document.read_text()):
            assert name in SETTINGS, f"{name} is no setting"
            default = float(value) / (1000 if unit == "ms" else 1)
            assert default == SETTINGS[name].default, f"{name} is {SETTINGS[name].default}"

    def test_metrics(self, document: Path) -> None:
        known = {exposed_name(metric) for metric in metrics()} | FIXTURES
        for name in re.findall(r"\bmainspring_[a-z_]+", document.read_text()):
            assert re.sub("_(bucket|count|sum)$", "", name) in known, f"{name} is no metric"

    def test_verbs(self, document: Path) -> None:
        for words in re.findall(
            r"(?m)(?:^|`|&& )mainspring ([a-z][^`#|>)\n]*)", document.read_text()
        ):
            assert_command_exists(words.split())

    def test_commands_of_the_checkout(self, document: Path) -> None:
        usage = usage_of_dev()
        for command, name in re.findall(r"\./dev ([a-z]+)(?: ([a-z]+))?", document.read_text()):
            assert re.search(rf"(?m)^  {command}\b", usage), f"there is no `./dev {command}`"
            if command == "bench" and name:
                assert (ROOT / "benchmarks" / f"{name}.py").exists(), name

    def test_handlers(self, document: Path) -> None:
        known = {
            NOOP,
            RUN_WORKFLOW,
            *HANDLERS,
            FUNCTION,
            "mainspring.testing",
            *(f"mainspring.{name}" for name in mainspring.__all__),
        }
        for name in re.findall(r'["`](mainspring\.[a-z_]+)["`]', document.read_text()):
            assert name in known, f"there is no handler {name}"

    def test_statements(self, document: Path) -> None:
        files = {path.stem for path in (SOURCE / "store" / "queries").glob("*.sql")}
        pattern = rf"`({'|'.join(sorted(files))})\.([a-z_]+)`"
        for file, name in re.findall(pattern, document.read_text()):
            assert name == "sql" or name in queries.load(file), f"there is no {file}.{name}"

    def test_actions(self, document: Path) -> None:
        known = set(crash_points.POINTS)
        for path in SOURCE.rglob("*.py"):
            known.update(re.findall(r'action="([a-z_.]+)"', path.read_text()))
        # Files and statements are written alike; other tests look for those.
        statements = {path.stem for path in (SOURCE / "store" / "queries").glob("*.sql")}
        rooms = {name.partition(".")[0] for name in known if "." in name} - statements
        pattern = rf"`((?:{'|'.join(sorted(rooms))})\.(?!py`)[a-z_]+)`"
        for name in re.findall(pattern, document.read_text()):
            assert name in known, f"{name} is neither an action nor a crash point"


def assert_command_exists(words: list[str]) -> None:
    command = typer.main.get_command(app)
    while isinstance(command, TyperGroup):
        verb = words.pop(0) if words else ""
        assert verb in command.commands, f"{command.name} has no command {verb!r}"
        command = command.commands[verb]
    known = {option for parameter in command.params for option in parameter.opts}
    named = {word.partition("=")[0] for word in words if word.startswith("-")}
    assert named <= known, f"{command.name} does not know {named - known}"


@cache
def usage_of_dev() -> str:
    return subprocess.check_output([ROOT / "dev", "help"], text=True)


# --- tables are up to date --------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_generated_tables_are_up_to_date(document: Path) -> None:
    text = document.read_text()
    assert text == regenerated(text), "run .venv/bin/python tests/support/docs.py"


@pytest.mark.parametrize("name", GENERATED)
def test_every_table_has_a_place(name: str) -> None:
    assert any(f"<!-- generated: {name} -->" in path.read_text() for path in DOCUMENTS)
