"""Items of a resource: found by name or id, answered with their revision as the ETag."""

import re
from typing import TypeVar

from starlette.responses import Response

from mainspring.api.http.bodies import json_response
from mainspring.api.http.operations import Missing, TenantCall, missing

T = TypeVar("T")

NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}", re.ASCII)
"""Names of items that are found by name."""

no_such_calendar = missing("calendar")
no_such_dead_letter = missing("dead letter")
no_such_key = missing("key")
no_such_run = missing("run")
no_such_schedule = missing("schedule")
no_such_secret = missing("secret")
no_such_workflow = missing("workflow")


def existing(item: T | None, missing: Missing, id: object) -> T:
    """Return the item; raise when there is none, or it is another tenant's."""
    if item is None:
        raise missing(id)
    return item


def name_in(call: TenantCall, missing: Missing) -> str:
    """Return the name in the path; raise NotFound for what is not a name."""
    name: str = call.request.path_params["id"]
    if not NAME.fullmatch(name):
        raise missing(name)
    return name


def item_response(
    item: object, revision: int, status: int = 200, location: str | None = None
) -> Response:
    """Return the answer with an item: its revision as ETag, and its path if it is new."""
    headers = {"ETag": f'"{revision}"'}
    if location is not None:
        headers["Location"] = location
    return json_response(item, status, headers)


def names_revision(header: str, rev: int) -> bool:
    """Whether a list of entity tags names this revision; weak tags count, as for any read."""
    tags = {tag.strip().removeprefix("W/") for tag in header.split(",")}
    return "*" in tags or f'"{rev}"' in tags
