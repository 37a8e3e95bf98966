"""The operations for the people who run a node, in words and types."""

from typing import Literal

from msgspec import Struct

from mainspring.api.documentation import Doc, Reply
from mainspring.errors import NotReady

TAG = "Operations"


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
    description="Says nothing about the database: restart the process only when this fails.",
    replies=[Reply(200, "It is.", Alive)],
)

READYZ = Doc(
    id="readyz",
    tag=TAG,
    summary="Is the node ready for requests?",
    replies=[Reply(200, "It is.", Ready)],
    problems=[NotReady],
)

METRICS = Doc(
    id="metrics",
    tag=TAG,
    summary="Read the metrics",
    description="In Prometheus' text format.",
    replies=[Reply(200, "All values.", str, media_type="text/plain")],
)
