"""Mainspring: run any work once, later, or again and again, at the right moment, losing nothing."""

from importlib.metadata import version

from mainspring.sdk.workflow import Workflow

__all__ = ["Workflow", "__version__"]
__version__ = version("mainspring")
