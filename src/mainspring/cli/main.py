"""`mainspring`: the servers and what keeps them going."""

import atexit
import gc
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from mainspring import __version__
from mainspring.cli import admin
from mainspring.cli.running import explaining, load_config, reporting, run
from mainspring.sdk.encoding import present

app = typer.Typer(
    name="mainspring",
    help="Run any work once, later, or again and again, at the right moment, losing nothing.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
# The collector's last round, while the interpreter goes down, takes msgspec's decoders apart in an
# order that they do not survive: one command in three would end with a crash after its work.
atexit.register(gc.freeze)

app.add_typer(admin.tenants, name="tenants")
app.add_typer(admin.keys, name="keys")
app.add_typer(admin.operator_key, name="operator-key")

secrets = typer.Typer(help="The secrets that are kept in the database.", no_args_is_help=True)
app.add_typer(secrets, name="secrets")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mainspring {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """The servers, and what keeps them going."""


@app.command()
def dev(
    port: Annotated[int | None, typer.Option(help="Port to listen on (default 7070).")] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Where the data lives (default ~/.mainspring/dev; of ./dev up: .dev/data)."
        ),
    ] = None,
) -> None:
    """Run everything on this machine, with a private PostgreSQL: for development."""
    loaded = load_config(port=port)
    # Here, so that a worker loads nothing of the server.
    from mainspring.cli import developing
    from mainspring.wiring import settings

    with explaining():
        config = developing.for_development(loaded)
        settings.check(config)
        directory = data or developing.default_data()
    run(developing.develop(config, directory))


@app.command()
def server(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
) -> None:
    """Run one node on the PostgreSQL that DATABASE_URL names."""
    config = load_config(host=host, port=port)
    from mainspring.cli import serving
    from mainspring.wiring import settings

    with explaining():
        settings.check(config)
    run(serving.serve(config))


_App = Annotated[
    str | None, typer.Argument(metavar="[MODULE:APP]", help="The app whose tasks to run.")
]
_Commands = Annotated[Path | None, typer.Option(help="Run commands that this TOML file allows.")]
_Queues = Annotated[str, typer.Option(help="Queues to take tasks from, with commas.")]
_Concurrency = Annotated[
    int, typer.Option(help="Handlers and commands at once.", min=1, max=100_000)
]
_Processes = Annotated[
    int | None, typer.Option(help="CPU-bound handlers at once (default: the cores).", min=1)
]
_Tags = Annotated[str, typer.Option(help="What tasks may require of it, with commas.")]
_WorkerName = Annotated[str | None, typer.Option(help="Its name (default: host and pid).")]
_Memory = Annotated[int | None, typer.Option(help="Memory it offers to tasks.")]
_Cpu = Annotated[float | None, typer.Option(help="Cores it offers to tasks.")]
_Grace = Annotated[float, typer.Option(help="Seconds that tasks may go on after SIGTERM.", min=0)]
_MaxTasks = Annotated[
    int | None, typer.Option(help="Replace a process after this many tasks.", min=1)
]
_MaxMemory = Annotated[
    int | None, typer.Option(help="Replace a process that uses more megabytes.", min=1)
]


@app.command()
def worker(
    target: _App = None,
    commands: _Commands = None,
    queues: _Queues = "default",
    concurrency: _Concurrency = 100,
    processes: _Processes = None,
    tags: _Tags = "",
    name: _WorkerName = None,
    memory_mb: _Memory = None,
    cpu: _Cpu = None,
    grace: _Grace = 20.0,
    max_tasks: _MaxTasks = None,
    max_memory: _MaxMemory = None,
) -> None:
    """Run the tasks of an app, or allowed commands, on this machine. It needs MAINSPRING_URL and
    MAINSPRING_API_KEY (scope work), and no database. Exit status: 0 after SIGTERM or Ctrl-C, 1 when
    the server refuses it, 2 when it cannot begin, 75 when a handler blocks it beyond help and it
    could not restart."""
    from mainspring.cli import worker as working
    from mainspring.sdk.worker.options import WorkerOptions

    options = WorkerOptions(
        queues=words(queues),
        concurrency=concurrency,
        tags=words(tags),
        memory_mb=memory_mb,
        cpu=cpu,
        grace=grace,
        max_tasks=max_tasks,
        max_memory_mb=max_memory,
        **present(name=name, processes=processes),
    )
    config = load_config()
    with explaining():
        made = working.prepare(config, target, commands, options)
    run(working.work(made))


def words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


@app.command()
def migrate() -> None:
    """Bring the database to this version's schema."""
    from mainspring.wiring import commands

    applied = run(commands.migrate(load_config(), partial(typer.echo, err=True)))
    for migration in applied:
        typer.echo(f"applied {migration.version:04} {migration.name}")
    if not applied:
        typer.echo("nothing to do: the schema is up to date")


@app.command()
def doctor() -> None:
    """Examine the database: version, settings, long transactions, clock; say what to change."""
    from mainspring.wiring import commands

    findings = run(commands.examine(load_config()))
    for finding in findings:
        typer.echo(f"{'ok  ' if finding.ok else 'look'}  {finding.subject}: {finding.detail}")
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


@app.command("restore-fence")
def restore_fence(
    force: Annotated[
        bool, typer.Option("--force", help="Also while nodes run: all of them join again.")
    ] = False,
) -> None:
    """Raise fences and epochs after a restore: issue none again that was issued since the backup.
    Nodes do it by themselves when they start on it; this is for making sure. It may be repeated."""
    from mainspring.wiring import commands

    config = load_config()
    alive = run(commands.living_nodes(config))
    if alive and not force:
        typer.echo(f"mainspring: nodes are running: {', '.join(alive)}", err=True)
        typer.echo("stop them first; or let all of them join anew with --force", err=True)
        raise typer.Exit(1)
    done = run(commands.restore_fence(config))
    typer.echo(f"tasks created before {done.before:%Y-%m-%dT%H:%M:%SZ} are leased")
    typer.echo(f"with fences from {done.floor} on; epochs of partitions are {done.epoch}")
    if done.nodes:
        typer.echo(f"nodes declared dead: {done.nodes}; those that run join anew")


@app.command()
def listen(
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)] = 8080,
    secret: Annotated[str | None, typer.Option(help="Verify signatures with this secret.")] = None,
    fail: Annotated[int, typer.Option(help="Answer the first N requests with 503.")] = 0,
    status: Annotated[int, typer.Option(help="Answer with this status.", min=200, max=599)] = 200,
    delay: Annotated[float, typer.Option(help="Seconds to wait before each answer.")] = 0.0,
) -> None:
    """Receive webhooks on this machine: print, verify, and fail on demand."""
    from mainspring.cli import listen as receiver

    with reporting():
        receiver.listen(port, receiver.Behaviour(secret, fail, status, delay))


@secrets.command("rotate")
def rotate_secrets() -> None:
    """Encrypt every secret in the database again, with the present secrets_key."""
    from mainspring.wiring import commands

    moved, left = run(commands.reseal(load_config()))
    typer.echo(f"sealed {moved} secrets anew")
    if left:
        typer.echo(f"{left} belong to running tasks: run this again when they have ended")
        raise typer.Exit(1)
