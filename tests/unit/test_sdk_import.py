"""`import mainspring` is light: who only schedules something loads nothing of the server."""

import subprocess
import sys

SERVER_SIDE = (
    "asyncpg",
    "cel_expr_python",
    "cryptography",
    "prometheus_client",
    "pycurl",
    "rich",
    "starlette",
    "structlog",
    "typer",
    "uvicorn",
    "uvloop",
)


def loaded_by(program: str) -> set[str]:
    output = subprocess.check_output(
        [sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules)"], text=True
    )
    return {name.partition(".")[0] for name in output.split()}


def test_the_package_alone_loads_nothing() -> None:
    before = loaded_by("import importlib, typing")
    assert loaded_by("import mainspring") - before <= {"mainspring"}


def test_an_app_and_its_clients_load_no_server() -> None:
    program = "import mainspring; mainspring.App(); mainspring.AsyncClient; mainspring.http('x')"
    assert loaded_by(program).isdisjoint(SERVER_SIDE)


def test_the_resources_of_a_client_load_no_server() -> None:
    program = """
import mainspring
from mainspring.sdk.client import _RESOURCES
client = mainspring.Client("http://x", "key")
assert all(getattr(client, name).blocking for name in _RESOURCES)
"""
    assert loaded_by(program).isdisjoint(SERVER_SIDE)


def test_a_worker_loads_no_server() -> None:
    program = "import mainspring.sdk.worker.worker"
    assert loaded_by(program).isdisjoint(SERVER_SIDE)


def test_every_name_is_there() -> None:
    import mainspring

    for name in mainspring.__all__:
        assert getattr(mainspring, name) is not None
    assert set(mainspring.__all__) <= set(dir(mainspring))
