"""The programs that a worker may run: a TOML file that the worker's owner writes.

    [commands.backup]
    program = ["/usr/local/bin/backup", "--quiet"]
    arguments = ["--full", "--since=[0-9-]+"]

A task's `argv` names a command and its arguments: `["backup", "--full"]`. The program is what the
file says; each argument must match one of the patterns whole. There is no shell anywhere.
"""

import re
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from mainspring.errors import ConfigError, NonRetryable

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Command(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One allowed program, and how it is run."""

    program: str | list[str]
    """The program's path or name, or the beginning of its command line."""
    arguments: Literal["none", "any"] | list[str] = "none"
    """Patterns, one of which each argument must match whole."""
    directory: str | None = None
    environment: dict[str, str] = {}
    """The program's whole environment, besides PATH, HOME, LANG and the task's own."""
    inherit: list[str] = []
    """Variables of the worker's environment that are passed on."""
    stdin: Literal["payload", "none"] = "payload"
    max_output: Annotated[int, msgspec.Meta(ge=0)] = 2**20
    """Bytes of output that are kept as log lines; the rest is read and dropped."""
    kill_after: Annotated[float, msgspec.Meta(ge=0)] = 5.0
    """Seconds between SIGTERM and SIGKILL."""
    permanent: list[int] = []
    """Exit statuses after which trying again is of no use."""

    @property
    def prefix(self) -> list[str]:
        return [self.program] if isinstance(self.program, str) else list(self.program)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    commands: dict[Name, Command]
    defaults: dict[str, object] = {}


class Allowlist:
    """The commands that may be run."""

    def __init__(self, commands: Mapping[str, Command]) -> None:
        self._commands = commands
        self._patterns = {
            name: [re.compile(pattern) for pattern in command.arguments]
            for name, command in commands.items()
            if isinstance(command.arguments, list)
        }

    @property
    def names(self) -> Sequence[str]:
        return sorted(self._commands)

    def find(self, argv: Sequence[str]) -> tuple[Command, list[str]]:
        """Return the command and its whole argument list; NonRetryable for what is not allowed."""
        name, *arguments = argv
        command = self._commands.get(name)
        if command is None:
            raise NonRetryable(f"the command {name!r} is not allowed on this worker")
        for argument in arguments:
            if not self._may(name, command, argument):
                raise NonRetryable(f"{name}: the argument {argument!r} is not allowed")
        return command, [*command.prefix, *arguments]

    def _may(self, name: str, command: Command, argument: str) -> bool:
        if "\0" in argument or command.arguments == "none":
            return False
        if command.arguments == "any":
            return True
        return any(pattern.fullmatch(argument) for pattern in self._patterns[name])


def load_allowed(file: Path) -> Allowlist:
    """Read the file; ConfigError says all that is wrong with it."""
    try:
        document = tomllib.loads(file.read_text("utf-8"))
        found = msgspec.convert(document, _File)
        defaults = found.defaults
        commands = {
            name: msgspec.convert({**defaults, **given}, Command)
            for name, given in document["commands"].items()
        }
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise ConfigError([f"{file} cannot be read: {problem}"]) from problem
    except msgspec.ValidationError as problem:
        raise ConfigError([f"{file}: {problem}"]) from problem
    problems = [text for name, command in commands.items() for text in _problems(name, command)]
    if problems:
        raise ConfigError([f"{file}: {text}" for text in problems])
    return Allowlist(commands)


def _problems(name: str, command: Command) -> list[str]:
    found = []
    if not command.prefix or not command.prefix[0]:
        found.append(f"{name}: program is empty")
    elif shutil.which(command.prefix[0]) is None:
        found.append(f"{name}: there is no program {command.prefix[0]!r}")
    if command.directory is not None and not Path(command.directory).is_dir():
        found.append(f"{name}: there is no directory {command.directory!r}")
    if isinstance(command.arguments, list):
        for pattern in command.arguments:
            try:
                re.compile(pattern)
            except re.error as problem:
                found.append(f"{name}: {pattern!r} is no pattern: {problem}")
    return found
