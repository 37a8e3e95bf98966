"""The operations on tasks, in words and types."""

from uuid import UUID

from mainspring.api.openapi.operation import (
    CURSOR,
    DRY_RUN,
    ETAG,
    GONE,
    IF_MATCH,
    IF_NONE_MATCH,
    LIMIT,
    LOCATION,
    OF_TASKS,
    REPLAYED,
    Body,
    Doc,
    Link,
    Param,
    ResponseDoc,
    never,
    next_page,
    several,
)
from mainspring.errors import Conflict, PreconditionFailed
from mainspring.store.vault import NoKey
from mainspring.wire.tasks import (
    BatchIn,
    ExecutionList,
    Ids,
    Instant,
    OutcomeOut,
    State,
    TaskIn,
    TaskOut,
    TaskPage,
    TaskPatch,
)

TAG = "Tasks"


_HTTP_TASK = {
    "name": "welcome-mail",
    "target": {"type": "http", "url": "https://api.example.com/hook"},
    "payload": {"user": 7},
    "run_at": "2027-01-01T08:00:00+01:00",
    "labels": {"team": "growth"},
}
_HANDLER_TASK = {"target": {"type": "handler", "name": "send_mail"}, "delay": "PT10M"}
_COMMAND_TASK = {
    "target": {"type": "command", "argv": ["backup.sh", "--full"]},
    "retry": {"max_attempts": 3},
}

_ONE_TIME_ONLY = never(*several("run_at", "delay"))
_TASK_RULES = {"TaskIn": _ONE_TIME_ONLY}
_PATCH_RULES = {"TaskPatch": {**_ONE_TIME_ONLY, "properties": {"concurrency": None}}}
_VERBS = ("cancel", "pause", "resume", "run")
_AFTERWARDS = {
    "read": Link("getTask", {"id": "$response.body#/id"}, "read it again"),
    "executions": Link("listExecutions", {"id": "$response.body#/id"}, "its tries"),
    "edit": Link("editTask", {"id": "$response.body#/id"}, "change it"),
    "delete": Link("deleteTask", {"id": "$response.body#/id"}, "remove it"),
    **{verb: Link(f"{verb}Task", {"id": "$response.body#/id"}) for verb in _VERBS},
}
_THE_TASK = ResponseDoc(200, "The task as it is now.", TaskOut, [ETAG], links=_AFTERWARDS)

LIST = Doc(
    id="listTasks",
    tag=TAG,
    summary="List tasks",
    description="Newest first, unfinished and finished ones. Filters are joined by *and*. A page "
    "may be short, or even empty, and still have a `next_cursor`: only its absence ends the list.",
    params=[
        Param("state", State, "Only tasks in this state."),
        *OF_TASKS,
        Param("due_after", Instant, "Only tasks due at or after this time."),
        Param("due_before", Instant, "Only tasks due before this time."),
        Param("schedule_id", UUID, "Only tasks of this schedule."),
        Param("workflow_run_id", UUID, "Only steps of this run."),
        Param("payload", bool, "Show payloads as well."),
        LIMIT,
        CURSOR,
    ],
    replies=[ResponseDoc(200, "A page of tasks.", TaskPage, links=next_page("listTasks"))],
)

CREATE = Doc(
    id="createTask",
    tag=TAG,
    summary="Create a task",
    description="Only `target` is required. The task is durable before this answers. Give either "
    "`run_at` or `delay`; neither means now, and so does a time that has passed.",
    params=[DRY_RUN],
    bodies=[
        Body(
            TaskIn,
            examples={"http": _HTTP_TASK, "handler": _HANDLER_TASK, "command": _COMMAND_TASK},
            rules=_TASK_RULES,
        )
    ],
    replies=[
        ResponseDoc(
            201, "The new task.", TaskOut, headers=[LOCATION, ETAG, REPLAYED], links=_AFTERWARDS
        ),
        ResponseDoc(200, "With `dry_run`: the task as it would be.", TaskOut),
    ],
    problems=[NoKey],
)

CREATE_BATCH = Doc(
    id="createTasks",
    tag=TAG,
    summary="Create many tasks",
    description="All of them or none. As one JSON document, or, with the Content-Type "
    "`application/x-ndjson`, as NDJSON with a task a line. Every error names the task's index.",
    params=[DRY_RUN],
    bodies=[Body(BatchIn, examples={"two": {"tasks": [_HTTP_TASK, _HANDLER_TASK]}})],
    also_consumes=["application/x-ndjson"],
    replies=[
        ResponseDoc(
            201,
            "The new tasks' ids.",
            Ids,
            headers=[REPLAYED],
            links={"first": Link("getTask", {"id": "$response.body#/ids/0"})},
        ),
        ResponseDoc(200, "With `dry_run`: all tasks are in order. The ids are not used.", Ids),
    ],
    problems=[NoKey],
)

READ = Doc(
    id="getTask",
    tag=TAG,
    summary="Read a task",
    params=[IF_NONE_MATCH],
    replies=[_THE_TASK, ResponseDoc(304, "It has not changed.", headers=[ETAG])],
)

EDIT = Doc(
    id="editTask",
    tag=TAG,
    summary="Change a task",
    description="While it has not started. A field that is given replaces the old value whole. A "
    "step that waits for others (`blocked`) takes its values from its workflow when its turn "
    "comes, and cannot be changed before.",
    params=[DRY_RUN, IF_MATCH],
    bodies=[Body(TaskPatch, examples={"sooner": {"delay": 60, "priority": 9}}, rules=_PATCH_RULES)],
    replies=[_THE_TASK],
    problems=[Conflict, NoKey, PreconditionFailed],
)

DELETE = Doc(
    id="deleteTask",
    tag=TAG,
    summary="Delete a task",
    description="Cancels it where needed, then removes it with its executions. The removal is "
    "noted in the audit log.",
    params=[IF_MATCH],
    replies=[GONE],
    problems=[PreconditionFailed],
)

EXECUTIONS = Doc(
    id="listExecutions",
    tag=TAG,
    summary="List a task's tries",
    description="Finished tries, first to last.",
    params=[Param("outcome", OutcomeOut, "Only tries that ended so.")],
    replies=[ResponseDoc(200, "The tries.", ExecutionList)],
)


def _verb(verb: str, summary: str, description: str) -> Doc:
    """What is done to a task by calling it."""
    return Doc(
        id=f"{verb}Task",
        tag=TAG,
        summary=summary,
        description=f"{description} Calling twice is harmless.",
        params=[IF_MATCH],
        replies=[_THE_TASK],
        problems=[Conflict, PreconditionFailed],
    )


CANCEL = _verb(
    "cancel",
    "Cancel a task",
    "A waiting task ends at once. A running one is asked to stop (`cancel_requested`).",
)
PAUSE = _verb("pause", "Pause a task", "It will not start until it is resumed.")
RESUME = _verb("resume", "Resume a paused task", "It keeps its due time.")
RUN = _verb("run", "Run a task now", "Makes a waiting task due at once.")
