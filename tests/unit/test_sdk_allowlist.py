"""Which commands a worker may run: read from a file, all mistakes told together."""

from pathlib import Path

import pytest

from mainspring.errors import ConfigError, NonRetryable
from mainspring.sdk.worker.allowlist import load_allowed

GOOD = """
[defaults]
max_output = 10

[commands.echo]
program = "/bin/echo"
arguments = ["hello", "--n=[0-9]+"]

[commands.any]
program = ["/bin/sh", "-c", "true"]
arguments = "any"
max_output = 20

[commands.plain]
program = "/bin/true"
"""


def load(directory: Path, text: str) -> object:
    file = directory / "allow.toml"
    file.write_text(text)
    return load_allowed(file)


def test_what_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "allow.toml").write_text(GOOD)
    allowed = load_allowed(tmp_path / "allow.toml")
    assert allowed.names == ["any", "echo", "plain"]
    command, argv = allowed.find(["echo", "hello", "--n=12"])
    assert argv == ["/bin/echo", "hello", "--n=12"]
    assert command.max_output == 10
    command, argv = allowed.find(["any", "$(x)", "; y"])
    assert argv == ["/bin/sh", "-c", "true", "$(x)", "; y"]
    assert command.max_output == 20


@pytest.mark.parametrize(
    "argv",
    [
        ["rm", "-rf"],
        ["/bin/echo"],
        ["echo", "goodbye"],
        ["echo", "hello\n"],
        ["echo", "--n=12; ls"],
        ["echo", "xhello"],
        ["plain", "anything"],
        ["any", "a\0b"],
        [""],
    ],
)
def test_what_is_not(tmp_path: Path, argv: list[str]) -> None:
    (tmp_path / "allow.toml").write_text(GOOD)
    with pytest.raises(NonRetryable, match="not allowed"):
        load_allowed(tmp_path / "allow.toml").find(argv)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "cannot be read"),
        ("", "commands"),
        ('[commands.x]\nprogram = "/no/such"\n', "there is no program"),
        ('[commands.x]\nprogram = "/bin/true"\narguments = ["("]\n', "is no pattern"),
        ('[commands.x]\nprogram = "/bin/true"\ndirectory = "/no/such"\n', "there is no directory"),
        ('[commands.x]\nprogram = "/bin/true"\nshell = true\n', "shell"),
        ("[commands.x]\nprogram = []\n", "program is empty"),
        ('[commands.x]\nprogram = "/bin/true"\narguments = "some"\n', "arguments"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_allowed(tmp_path / "nothing.toml")
