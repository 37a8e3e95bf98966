"""The routes of dead letters."""

from mainspring.api.dead_letters.resource import DeadLetterResource
from mainspring.api.http.operations import TenantOperation
from mainspring.api.openapi.operation import (
    CURSOR,
    DRY_RUN,
    ETAG,
    GONE,
    LIMIT,
    LOCATION,
    OF_TASKS,
    AnyText,
    Body,
    Param,
    ResponseDoc,
    never,
    next_page,
)
from mainspring.api.routes import Routes, Tag, created, links_by, ok
from mainspring.errors import Conflict
from mainspring.wire.dead_letters import (
    DeadLetterGroups,
    DeadLetterOut,
    DeadLetterPage,
    ReplayedOut,
    ReplayIn,
)
from mainspring.wire.tasks import Instant, TaskOut

_DEAD_LETTERS = Tag("Dead letters")
_THE_DEAD_LETTER = ok("The dead letter as it is now.", DeadLetterOut)
# Only unresolved ones can be replayed.
_RESOLVED = {"required": ["resolved"], "properties": {"resolved": {"const": True}}}
_NEW_TASK = links_by("id", task=("getTask", "follow the new task"))


def dead_letter_routes(dead_letters: DeadLetterResource) -> Routes:
    return {
        "GET /v1/dead-letters": _page(dead_letters),
        "POST /v1/dead-letters/replay": _replay_many(dead_letters),
        "GET /v1/dead-letters/{id}": _DEAD_LETTERS.tenant(
            "read", dead_letters.one, "getDeadLetter", "Read a dead letter",
            "Its id is the id of the task that died.",
            _THE_DEAD_LETTER,
        ),
        "DELETE /v1/dead-letters/{id}": _DEAD_LETTERS.tenant(
            "write", dead_letters.delete, "deleteDeadLetter", "Delete a dead letter",
            "The removal is noted in the audit log; the task stays in history.",
            GONE,
        ),
        "POST /v1/dead-letters/{id}/replay": _DEAD_LETTERS.tenant(
            "write", dead_letters.replay, "replayDeadLetter", "Run a dead letter again",
            "Makes a new task, due now, with `replay_of`. Calling twice, also at the same time, "
            "gives the same new task.",
            created("The new task.", TaskOut, ETAG, links=_NEW_TASK),
            ok("The task it was replayed as before.", TaskOut, LOCATION, ETAG), problems=[Conflict],
        ),
        "POST /v1/dead-letters/{id}/archive": _DEAD_LETTERS.tenant(
            "write", dead_letters.archive, "archiveDeadLetter", "Put a dead letter away",
            "It is resolved without a replay. Calling twice is harmless.",
            _THE_DEAD_LETTER, problems=[Conflict],
        ),
    }  # fmt: skip


def _page(dead_letters: DeadLetterResource) -> TenantOperation:
    return _DEAD_LETTERS.tenant(
        "read", dead_letters.page, "listDeadLetters", "List dead letters",
        "Newest first. Filters are joined by *and*. A page may be short and still have a "
        "`next_cursor`. With `group=true` the answer counts the letters per kind of error instead, "
        "the most frequent first, among the newest 100,000.",
        ResponseDoc(
            200, "A page of dead letters, or their groups.", DeadLetterPage,
            or_type=DeadLetterGroups, links=next_page("listDeadLetters"),
        ),
        params=[
            Param("resolved", bool, "Only resolved ones, or only unresolved ones."),
            *OF_TASKS,
            Param("fingerprint", AnyText, "Only letters that died of this kind of error."),
            Param("died_after", Instant, "Only letters that died at or after this time."),
            Param("died_before", Instant, "Only letters that died before this time."),
            Param("group", bool, "Count by kind of error."),
            Param("payload", bool, "Show payloads (true)."),
            LIMIT, CURSOR,
        ],
    )  # fmt: skip


def _replay_many(dead_letters: DeadLetterResource) -> TenantOperation:
    careful = {"careful": {"filter": {}, "first": 10, "stop_on_failure_rate": 0.5}}
    return _DEAD_LETTERS.tenant(
        "write", dead_letters.replay_many, "replayDeadLetters",
        "Run all dead letters that match again",
        "Unresolved ones, oldest first, at most `first` and never more than 10,000 a call; not "
        "what the call made itself and what died again. With `stop_on_failure_rate` the replay "
        "goes in steps of a quarter of `first`, of 1 to 10 letters: before each further step it "
        "waits up to 5 seconds for the tasks made so far to end, and stops when the share of "
        "failed ones (a try that failed counts, also where another will follow) exceeds the rate. "
        "Where nothing has ended yet it goes on; after 30 seconds in all it stops, and the call "
        "can be repeated.",
        ok("The new tasks; with `dry_run` only how many.", ReplayedOut), params=[DRY_RUN],
        body=Body(ReplayIn, examples=careful, rules={"LetterFilterIn": never(_RESOLVED)}),
    )  # fmt: skip
