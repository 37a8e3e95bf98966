"""Filters of dead letters, in queries and in bodies, as the store knows them."""

from starlette.datastructures import QueryParams

from mainspring.api.http.parameters import ListQuery, Parameters
from mainspring.api.http.problems import raise_if
from mainspring.api.tasks.filters import instant_in, labels_in
from mainspring.errors import Problem
from mainspring.store.dead_letters import LetterFilter
from mainspring.wire.dead_letters import LetterFilterIn

_PARAMETERS = {
    *("resolved", "name", "queue", "label", "fingerprint", "died_after", "died_before"),
    *("group", "limit", "cursor", "payload"),
}


def dead_letter_query(params: QueryParams) -> tuple[ListQuery[LetterFilter], bool]:
    """Return the query of a list of dead letters, and whether it asks for groups instead."""
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
    payloads, grouped = given.flag("payload", default=True), given.flag("group")
    return given.list_query(where, payloads=payloads), grouped


def dead_letter_filter(given: LetterFilterIn) -> LetterFilter:
    """Return the filter in a body; raise all of its problems together."""
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
    raise_if(problems, "the filter does not make sense")
    return found
