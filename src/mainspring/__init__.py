"""Mainspring: run any work once, later, or again and again, at the right moment, losing nothing."""

from importlib.metadata import version

__version__ = version("mainspring")
