"""The API as one ASGI application: from routes to what serves them."""

from random import Random

from mainspring.api.http.auth import Authenticator
from mainspring.api.http.endpoint import Endpoint, Router
from mainspring.api.http.idempotency import Idempotency
from mainspring.api.http.middleware import RequestMiddleware
from mainspring.api.http.rate_limits import RateLimits
from mainspring.api.openapi.document import Paths
from mainspring.observe.metrics import Metrics


def serve(
    paths: Paths,
    authenticator: Authenticator,
    limits: RateLimits,
    idempotency: Idempotency,
    *,
    metrics: Metrics,
    rng: Random,
    max_body: int,
) -> RequestMiddleware:
    """Build the application. It has no lifespan: the parts are started and ended by the server."""
    endpoints = {
        path: Endpoint(path, known, authenticator, limits, idempotency)
        for path, known in paths.items()
    }
    return RequestMiddleware(
        Router(endpoints),
        {path: endpoint.compile_fast_path for path, endpoint in endpoints.items()},
        metrics=metrics,
        rng=rng,
        max_body=max_body,
    )
