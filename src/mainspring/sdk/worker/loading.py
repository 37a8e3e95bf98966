"""From `module:app` to the app."""

import sys
from importlib import import_module
from pathlib import Path

from mainspring.errors import ConfigError
from mainspring.sdk.app import App


def load_app(path: str) -> App:
    """The app that `module:name` names; without a name, the one app of the module."""
    module_name, _, name = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as if the module had been run from this directory
    try:
        module = import_module(module_name)
    except ImportError as problem:
        raise ConfigError([f"{module_name!r} cannot be imported: {problem}"]) from problem
    if name:
        found = getattr(module, name, None)
        if not isinstance(found, App):
            raise ConfigError([f"{module_name!r} has no mainspring.App {name!r}"])
        return found
    apps = {id(value): value for value in vars(module).values() if isinstance(value, App)}
    if len(apps) != 1:
        raise ConfigError([f"{module_name!r} has {len(apps)} apps: name one, as in module:app"])
    return next(iter(apps.values()))
