"""From `module:app` to an app, or to a sentence that says why not."""

from itertools import count
from pathlib import Path

import pytest

from mainspring.cli.worker import prepare
from mainspring.config import load
from mainspring.errors import ConfigError
from mainspring.sdk.app import load_app
from mainspring.sdk.worker.options import WorkerOptions

_numbers = count()
APP = "import mainspring\napp = mainspring.App()\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def module(where: Path, text: str) -> str:
    name = f"loading_module_{next(_numbers)}"
    (where / f"{name}.py").write_text(text)
    return name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n\nundefined()\n", r"NameError: name 'undefined' is not defined \(.*, line 3\)"),
        ("def broken(:\n", "SyntaxError"),
        ("import no_such_module_at_all\n", "No module named 'no_such_module_at_all'"),
        ("x = 1\n", "has no mainspring.App 'app'"),
        ("app = 1\n", "has no mainspring.App 'app'"),
    ],
)
def test_mistakes_are_reported(here: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_app(f"{module(here, text)}:app")


@pytest.mark.parametrize("path", ["", ":app", "no_such_module_at_all:app", ".relative:app"])
def test_what_is_no_module(here: Path, path: str) -> None:
    with pytest.raises(ConfigError, match="cannot be imported"):
        load_app(path)


def test_the_one_app_of_a_module_needs_no_name(here: Path) -> None:
    name = module(here, APP + "same = app\n")
    assert load_app(name).name == name, "it is called as its module"
    with pytest.raises(ConfigError, match="has 2 apps: name one"):
        load_app(module(here, APP + "other = mainspring.App()\n"))


def test_a_worker_that_cannot_start_says_why(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAINSPRING_API_KEY", raising=False)
    name = module(here, APP)
    with pytest.raises(ConfigError, match="api_key is not set"):
        prepare(load(), name, None, WorkerOptions())
    monkeypatch.setenv("MAINSPRING_API_KEY", "key")
    with pytest.raises(ConfigError, match="nothing to run"):
        prepare(load(), None, None, WorkerOptions())
    with pytest.raises(ConfigError, match="has no tasks"):
        prepare(load(), name, None, WorkerOptions())
    with pytest.raises(ConfigError, match="--queues names none"):
        prepare(load(), name, None, WorkerOptions(queues=()))
