"""Filters of dead letters, in queries and in bodies, as the store knows them."""

from uuid import UUID

from msgspec import Struct
from starlette.datastructures import QueryParams

from mainspring.api.http.parameters import Parameters
from mainspring.api.tasks.filters import instant_in, labels_in, refuse_filter
from mainspring.errors import Problem
from mainspring.store.dead_letters import LetterFilter
from mainspring.wire.dead_letters import LetterFilterIn

_PARAMETERS = {
    *("resolved", "name", "queue", "label", "fingerprint", "died_after", "died_before"),
    *("group", "limit", "cursor", "payload"),
}


class DeadLetterQuery(Struct, frozen=True):
    """What GET /v1/dead-letters asks for."""

    where: LetterFilter
    before: UUID | None
    limit: int
    payloads: bool
    grouped: bool


def dead_letter_query(params: QueryParams) -> DeadLetterQuery:
    """All parameters of a list of dead letters; payloads are shown unless they are not wanted."""
    given = Parameters(params, _PARAMETERS)
    where = LetterFilter(
        name=given.text("name"),
        queue=given.text("queue"),
        labels=given.labels(),
        fingerprint=given.text("fingerprint"),
        died_after=given.instant("died_after"),
        died_before=given.instant("died_before"),
        resolved=given.flag("resolved") if "resolved" in given else None,
    )
    query = DeadLetterQuery(
        where,
        given.cursor(),
        given.limit(),
        given.flag("payload", default=True),
        given.flag("group"),
    )
    given.check()
    return query


def dead_letter_filter(given: LetterFilterIn) -> LetterFilter:
    """The filter in a body; everything that is wrong is reported together."""
    problems: list[Problem] = []
    if given.resolved:
        problems.append(Problem("/filter/resolved", "only unresolved ones can be replayed"))
    found = LetterFilter(
        name=given.name,
        queue=given.queue,
        labels=labels_in(given, problems),
        fingerprint=given.fingerprint,
        died_after=instant_in(given.died_after, "died_after", problems),
        died_before=instant_in(given.died_before, "died_before", problems),
        resolved=False,
    )
    refuse_filter(problems)
    return found
