"""The operations for the people who run a node, in words and types."""

from typing import Literal

from msgspec import Struct

from mainspring.api.openapi.operation import Doc, ResponseDoc
from mainspring.errors import NotReady

TAG = "Operations"
PLAIN = "text/plain"
OPEN_METRICS = "application/openmetrics-text"


class Alive(Struct):
    """The process answers."""

    status: Literal["alive"]


class Ready(Struct):
    """The node wants requests."""

    status: Literal["ready"]


HEALTHZ = Doc(
    id="healthz",
    tag=TAG,
    summary="Is the process alive?",
    description="Says nothing about the database: restart the process only when this fails, or "
    "when there is no answer. It fails for ten seconds after the process stood still for a while.",
    replies=[ResponseDoc(200, "It is.", Alive)],
    problems=[NotReady],
)

READYZ = Doc(
    id="readyz",
    tag=TAG,
    summary="Is the node ready for requests?",
    replies=[ResponseDoc(200, "It is.", Ready)],
    problems=[NotReady],
)

METRICS = Doc(
    id="metrics",
    tag=TAG,
    summary="Read the metrics",
    description="In Prometheus' text format, or in that of OpenMetrics for who prefers it.",
    replies=[
        ResponseDoc(200, "All values.", str, media_type=PLAIN),
        ResponseDoc(200, "All values.", str, media_type=OPEN_METRICS),
    ],
)
