"""The operations on dead letters, on many tasks at once and on effects, in words and types."""

from mainspring.api.openapi.operation import (
    CURSOR,
    DRY_RUN,
    ETAG,
    GONE,
    LIMIT,
    LOCATION,
    OF_TASKS,
    REPLAYED,
    AnyText,
    Body,
    Doc,
    Link,
    Param,
    ResponseDoc,
    never,
    next_page,
    span,
)
from mainspring.errors import Conflict
from mainspring.wire.dead_letters import (
    LONGEST_EFFECT,
    CancelIn,
    CancelledOut,
    DeadLetterGroups,
    DeadLetterOut,
    DeadLetterPage,
    EffectIn,
    EffectOut,
    ReplayedOut,
    ReplayIn,
)
from mainspring.wire.tasks import ExplanationOut, Instant, TaskOut

TASKS = "Tasks"
LETTERS = "Dead letters"
EFFECTS = "Effects"

_THE_LETTER = ResponseDoc(200, "The dead letter as it is now.", DeadLetterOut)
# Only unresolved ones can be replayed.
_RESOLVED = {"required": ["resolved"], "properties": {"resolved": {"const": True}}}
_NEW_TASK = {"task": Link("getTask", {"id": "$response.body#/id"}, "follow the new task")}

CANCEL_MANY = Doc(
    id="cancelTasks",
    tag=TASKS,
    summary="Cancel all tasks that match",
    description="Waiting tasks end at once; running ones are asked to stop. Fields of the filter "
    'are joined by *and*; `{"filter": {}}` means every unfinished task that exists now. The work '
    "is done in steps of at most 1000 tasks: if the call breaks off, what was done stays done, and "
    "it can be repeated. A run of which steps are cancelled goes on without them as its workflow "
    "says; to end all of it, cancel the run.",
    params=[DRY_RUN],
    bodies=[Body(CancelIn, examples={"queue": {"filter": {"queue": "mail", "label": "team:a"}}})],
    replies=[
        ResponseDoc(200, "How many were, or with `dry_run` would be, cancelled.", CancelledOut)
    ],
)

EXPLAIN = Doc(
    id="explainTask",
    tag=TASKS,
    summary="Explain why a task is not running",
    description="The gates in the order in which a task meets them, each passed or not. The "
    "verdict is the first that is not passed, or `ready`, `running` or `finished`; of a finished "
    "task the lateness says where the seconds between due and start went.",
    replies=[ResponseDoc(200, "The explanation.", ExplanationOut)],
)

LIST = Doc(
    id="listDeadLetters",
    tag=LETTERS,
    summary="List dead letters",
    description="Newest first. Filters are joined by *and*. A page may be short and still have a "
    "`next_cursor`. With `group=true` the answer counts the letters per kind of error instead, the "
    "most frequent first, among the newest 100,000.",
    params=[
        Param("resolved", bool, "Only resolved ones, or only unresolved ones."),
        *OF_TASKS,
        Param("fingerprint", AnyText, "Only letters that died of this kind of error."),
        Param("died_after", Instant, "Only letters that died at or after this time."),
        Param("died_before", Instant, "Only letters that died before this time."),
        Param("group", bool, "Count by kind of error."),
        Param("payload", bool, "Show payloads (true)."),
        LIMIT,
        CURSOR,
    ],
    replies=[
        ResponseDoc(
            200,
            "A page of dead letters, or their groups.",
            DeadLetterPage,
            or_type=DeadLetterGroups,
            links=next_page("listDeadLetters"),
        )
    ],
)

READ = Doc(
    id="getDeadLetter",
    tag=LETTERS,
    summary="Read a dead letter",
    description="Its id is the id of the task that died.",
    replies=[_THE_LETTER],
)

REPLAY = Doc(
    id="replayDeadLetter",
    tag=LETTERS,
    summary="Run a dead letter again",
    description="Makes a new task, due now, with `replay_of`. Calling twice, also at the same "
    "time, gives the same new task.",
    replies=[
        ResponseDoc(
            201, "The new task.", TaskOut, headers=[LOCATION, ETAG, REPLAYED], links=_NEW_TASK
        ),
        ResponseDoc(200, "The task it was replayed as before.", TaskOut, headers=[LOCATION, ETAG]),
    ],
    problems=[Conflict],
)

ARCHIVE = Doc(
    id="archiveDeadLetter",
    tag=LETTERS,
    summary="Put a dead letter away",
    description="It is resolved without a replay. Calling twice is harmless.",
    replies=[_THE_LETTER],
    problems=[Conflict],
)

DELETE = Doc(
    id="deleteDeadLetter",
    tag=LETTERS,
    summary="Delete a dead letter",
    description="The removal is noted in the audit log; the task stays in history.",
    replies=[GONE],
)

REPLAY_MANY = Doc(
    id="replayDeadLetters",
    tag=LETTERS,
    summary="Run all dead letters that match again",
    description="Unresolved ones, oldest first, at most `first` and never more than 10,000 a call; "
    "not what the call made itself and what died again. With `stop_on_failure_rate` the replay "
    "goes in steps of a quarter of `first`, of 1 to 10 letters: before each further step it waits "
    "up to 5 seconds for the tasks made so far to end, and stops when the share of failed ones (a "
    "try that failed counts, also where another will follow) exceeds the rate. Where nothing has "
    "ended yet it goes on; after 30 seconds in all it stops, and the call can be repeated.",
    params=[DRY_RUN],
    bodies=[
        Body(
            ReplayIn,
            examples={"careful": {"filter": {}, "first": 10, "stop_on_failure_rate": 0.5}},
            rules={"LetterFilterIn": never(_RESOLVED)},
        )
    ],
    replies=[ResponseDoc(200, "The new tasks; with `dry_run` only how many.", ReplayedOut)],
)

EFFECT = Doc(
    id="noteEffect",
    tag=EFFECTS,
    summary="Note that something is done once",
    description="Of all calls with the same key exactly one is answered with 201; the others get "
    "200 and the first one's answer, until `ttl` (7 days) has passed. A receiver that is called at "
    "least once can so have its effect once.",
    bodies=[
        Body(
            EffectIn,
            examples={"mail": {"key": "welcome-mail/7", "answer": {"sent": True}}},
            rules={"EffectIn": {"properties": {"ttl": span(LONGEST_EFFECT)}}},
        )
    ],
    replies=[
        ResponseDoc(201, "This call was the first.", EffectOut, headers=[REPLAYED]),
        ResponseDoc(200, "Another call was; this is its answer.", EffectOut),
    ],
)
