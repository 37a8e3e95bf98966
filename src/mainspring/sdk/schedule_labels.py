"""Labels by which a schedule says which app declared it, and how."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainspring.sdk.resources.schedules import Schedule

DEFINITION = "mainspring-definition"
"""The label by which `put` knows that a schedule is as it should be."""
OWNER = "mainspring-app"
"""The label that says which app declares a schedule."""
VERSION = "mainspring-app-version"
"""The label that says which version of the app declared it last."""


def labels_of(schedule: "Schedule") -> Mapping[str, str]:
    """The labels of the tasks it makes."""
    return (schedule.task or {}).get("labels") or {}


def version_in(labels: Mapping[str, str]) -> int:
    """0 for what tells none: older than any that does."""
    text = labels.get(VERSION, "")
    return int(text) if text.isdecimal() else 0
