"""Health, readiness and metrics of a node."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics import exposition as openmetrics
from starlette.requests import Request
from starlette.responses import Response

from mainspring.api.http.bodies import RawJsonResponse
from mainspring.api.http.negotiation import preferred
from mainspring.api.http.operations import OperatorCall
from mainspring.api.node_ports import NodePort
from mainspring.errors import NotReady
from mainspring.observe.metrics import Metrics

PLAIN = "text/plain"
OPEN_METRICS = "application/openmetrics-text"


class Alive(Struct):
    """The process answers."""

    status: Literal["alive"]


class Ready(Struct):
    """The node wants requests."""

    status: Literal["ready"]


@dataclass(frozen=True, slots=True)
class Operations:
    """/healthz, /readyz and /metrics."""

    node: NodePort
    registry: Metrics
    complaint: Callable[[], str | None]
    """What is wrong with the process, if anything is."""

    async def healthz(self, _request: Request) -> Response:
        """Return 200 while the process answers and its loop did not stall lately."""
        if (complaint := self.complaint()) is not None:
            raise NotReady(complaint)
        return RawJsonResponse(b'{"status":"alive"}')

    async def readyz(self, _request: Request) -> Response:
        if not self.node.ready():
            raise NotReady("this node is starting, stopping, or has lost the database")
        return RawJsonResponse(b'{"status":"ready"}')

    async def metrics(self, call: OperatorCall) -> Response:
        accept = call.request.headers.get("accept", "*/*")
        if preferred(accept, (PLAIN, OPEN_METRICS)) == OPEN_METRICS:
            return _text(self.registry.open_exposition(), openmetrics.CONTENT_TYPE_LATEST)
        return _text(self.registry.exposition(), CONTENT_TYPE_PLAIN_0_0_4)


def _text(body: bytes, content_type: str) -> Response:
    # Not `media_type`: Starlette would add a second charset.
    return Response(body, headers={"Content-Type": content_type})
