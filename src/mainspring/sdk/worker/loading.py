"""Loading an app by its name, `module:app`."""

import sys
import traceback
from importlib import import_module
from pathlib import Path

from mainspring.errors import ConfigError
from mainspring.sdk.app import App


def load_app(path: str) -> App:
    """Return the app that `module:name` names; without a name, the one app of the module."""
    module_name, _, name = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as if the module had been run from this directory
    try:
        module = import_module(module_name)
    except Exception as problem:  # it is the user's code that runs: anything may happen
        raise ConfigError([f"{module_name!r} cannot be imported: {_told(problem)}"]) from problem
    if name:
        found = getattr(module, name, None)
        if not isinstance(found, App):
            raise ConfigError([f"{module_name!r} has no mainspring.App {name!r}"])
        return found
    apps = {id(value): value for value in vars(module).values() if isinstance(value, App)}
    if len(apps) != 1:
        raise ConfigError([f"{module_name!r} has {len(apps)} apps: name one, as in module:app"])
    return next(iter(apps.values()))


def _told(problem: Exception) -> str:
    """Return the error, and the line of code that raised it."""
    if isinstance(problem, ModuleNotFoundError):
        return str(problem)
    frames = traceback.extract_tb(problem.__traceback__)
    theirs = [frame for frame in frames if "importlib" not in frame.filename]
    where = f" ({theirs[-1].filename}, line {theirs[-1].lineno})" if len(theirs) > 1 else ""
    return f"{type(problem).__name__}: {problem}{where}"
