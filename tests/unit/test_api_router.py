"""Paths, and the bytes of an answer on their way out."""

from typing import Any, cast

import pytest
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from mainspring.api.door import Cork
from mainspring.api.router import Router


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


class Transport:
    def __init__(self) -> None:
        self.log: list[object] = []

    def write(self, data: bytes) -> None:
        self.log.append(data)

    def writelines(self, pieces: list[bytes]) -> None:
        self.log.append(b"".join(pieces))

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        self.log.append("closed")

    def get_extra_info(self, name: str) -> str:
        return name


def test_head_and_body_leave_together() -> None:
    transport = Transport()
    cork = Cork(cast("Any", transport))
    cork.write(b"1")
    cork.hold()
    cork.write(b"2")
    cork.write(b"3")
    cork.let_go()
    cork.write(b"4")
    cork.let_go()
    assert transport.log == [b"1", b"23", b"4"]
    assert cork.get_extra_info("peername") == "peername"


def test_what_was_held_leaves_before_the_end() -> None:
    transport = Transport()
    cork = Cork(cast("Any", transport))
    cork.hold()
    cork.write(b"all")
    cork.close()
    cork.let_go()
    assert transport.log == [b"all", "closed"]
