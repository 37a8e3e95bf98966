"""Every route of the application, from the application itself: a new one is walked too."""

from collections.abc import Iterator
from random import Random
from typing import Any, cast

import msgspec

from mainspring.api.http.operations import Operation
from mainspring.api.openapi.document import describe
from mainspring.config import Config
from mainspring.domain.ids import TaskIds
from mainspring.observe.metrics import Metrics
from mainspring.wiring.api import ApiDependencies, paths_of
from support.manual_clock import ManualClock


def every_route() -> Iterator[tuple[str, str, Operation]]:
    """Method, path and operation. Nothing stands behind them: they are only to be looked at."""
    nothing = cast("Any", None)
    deps = ApiDependencies(
        config=Config(),
        clock=ManualClock(0),
        tasks=nothing,
        keys=nothing,
        ids=TaskIds(Random(1)),
        rng=Random(1),
        node=nothing,
        metrics=Metrics(),
        database=nothing,
        lease_service=nothing,
    )
    for path, operations in paths_of(deps).items():
        for method, operation in operations.items():
            yield method, path, operation


def document() -> dict[str, Any]:
    """Return the OpenAPI document of all these routes, as a client reads it."""
    paths: dict[str, dict[str, Operation]] = {}
    for method, path, operation in every_route():
        paths.setdefault(path, {})[method] = operation
    return cast("dict[str, Any]", msgspec.json.decode(msgspec.json.encode(describe(paths, "1"))))
