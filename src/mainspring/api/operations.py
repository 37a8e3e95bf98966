"""For the people who run a node: is it alive, is it ready, what does it count."""

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from mainspring.api.ports import NodePort
from mainspring.api.routing import OperatorCall, raw_json
from mainspring.errors import NotReady
from mainspring.observe.metrics import Metrics


class Operations:
    """/healthz, /readyz and /metrics."""

    def __init__(self, node: NodePort, metrics: Metrics) -> None:
        self._node = node
        self._metrics = metrics

    async def healthz(self, _request: Request) -> Response:
        """The process answers: that is all this says."""
        return raw_json(b'{"status":"alive"}')

    async def readyz(self, _request: Request) -> Response:
        if not self._node.ready():
            raise NotReady("this node is starting, stopping, or has lost the database")
        return raw_json(b'{"status":"ready"}')

    async def metrics(self, _call: OperatorCall) -> Response:
        # Not `media_type`: Starlette would add a second charset.
        return Response(self._metrics.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})
