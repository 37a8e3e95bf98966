"""The routes of dead letters."""

from mainspring.api.dead_letters.resource import DeadLetterResource
from mainspring.api.http.operations import TenantOperation
from mainspring.api.openapi import operation as docs
from mainspring.api.routes import Routes, Tag, created, links_by, ok
from mainspring.errors import Conflict
from mainspring.wire import dead_letters as wire
from mainspring.wire.tasks import Instant, TaskOut

_DEAD_LETTERS = Tag("Dead letters")
_THE_DEAD_LETTER = ok("The dead letter as it is now.", wire.DeadLetterOut)
# Only unresolved ones can be replayed.
_RESOLVED = {"required": ["resolved"], "properties": {"resolved": {"const": True}}}
_RULES = {"LetterFilterIn": docs.never(_RESOLVED)}
_FINGERPRINT = docs.Param(
    "fingerprint", docs.AnyText, "Only letters that died of this kind of error."
)
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
            "The removal is noted in the audit log; the task stays in history.", docs.GONE,
        ),
        "POST /v1/dead-letters/{id}/replay": _DEAD_LETTERS.tenant(
            "write", dead_letters.replay, "replayDeadLetter", "Run a dead letter again",
            "Makes a new task, due now, with `replay_of`. Calling twice, also at the same time, "
            "gives the same new task.",
            created("The new task.", TaskOut, docs.ETAG, links=_NEW_TASK),
            ok("The task it was replayed as before.", TaskOut, docs.LOCATION, docs.ETAG),
            problems=[Conflict],
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
        docs.ResponseDoc(
            200, "A page of dead letters, or their groups.", wire.DeadLetterPage,
            or_type=wire.DeadLetterGroups, links=docs.next_page("listDeadLetters"),
        ),
        params=[
            docs.Param("resolved", bool, "Only resolved ones, or only unresolved ones."),
            *docs.OF_TASKS,
            _FINGERPRINT,
            docs.Param("died_after", Instant, "Only letters that died at or after this time."),
            docs.Param("died_before", Instant, "Only letters that died before this time."),
            docs.Param("group", bool, "Count by kind of error."),
            docs.Param("payload", bool, "Show payloads (true)."),
            *docs.PAGED,
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
        "failed ones (a failed execution counts, also where another will follow) exceeds the rate. "
        "Where nothing has ended yet it goes on; after 30 seconds in all it stops, and the call "
        "can be repeated.",
        ok("The new tasks; with `dry_run` only how many.", wire.ReplayedOut), params=[docs.DRY_RUN],
        body=docs.Body(wire.ReplayIn, examples=careful, rules=_RULES),
    )  # fmt: skip
