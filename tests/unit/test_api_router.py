"""From a path to its resource."""

from typing import Any, cast

import pytest
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from mainspring.api.http.endpoint import Router


class Named:
    """A resource that only remembers what reached it."""

    def __init__(self) -> None:
        self.seen: list[dict[str, str]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.seen.append(scope.get("path_params", {}))


async def find(router: Router, path: str) -> None:
    await router({"path": path}, cast("Any", None), cast("Any", None))


async def test_fixed_names_go_before_ids() -> None:
    fixed, one, verb = Named(), Named(), Named()
    router = Router({"/v1/t/{id}": one, "/v1/t/batch": fixed, "/v1/t/{id}/run": verb})
    await find(router, "/v1/t/batch")
    await find(router, "/v1/t/batches")
    await find(router, "/v1/t/7/run")
    assert (fixed.seen, one.seen, verb.seen) == ([{}], [{"id": "batches"}], [{"id": "7"}])


@pytest.mark.parametrize(
    "path",
    ["/", "", "/v1", "/v1/t/", "/v1/t//run", "/v1/t/7/run/", "/v1/u/7", "/x/t/7", "//v1/t/7"],
)
async def test_other_paths_lead_nowhere(path: str) -> None:
    router = Router({"/v1/t/{id}": Named(), "/v1/t/{id}/run": Named()})
    with pytest.raises(HTTPException):
        await find(router, path)
