"""Labels of a schedule that name the app which declared it, its version, and the definition."""

from collections.abc import Mapping
from typing import Any

DEFINITION = "mainspring-definition"
"""The label by which `put` knows that a schedule is as it should be."""
OWNER = "mainspring-app"
"""The label that says which app declares a schedule."""
VERSION = "mainspring-app-version"
"""The label that says which version of the app declared it last."""


def labels_of(task: Mapping[str, Any] | None) -> Mapping[str, str]:
    """Return the labels of the tasks that a schedule makes."""
    return (task or {}).get("labels") or {}


def version_in(labels: Mapping[str, str]) -> int:
    """Return the version of an app; 0, older than any, where there is none."""
    text = labels.get(VERSION, "")
    return int(text) if text.isdecimal() else 0
