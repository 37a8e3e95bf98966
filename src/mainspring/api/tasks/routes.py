"""The routes of tasks."""

from functools import partial
from uuid import UUID

from mainspring.api.http.operations import TenantOperation
from mainspring.api.openapi import operation as docs
from mainspring.api.routes import Routes, Tag, created, created_without_path, links_by, ok
from mainspring.api.tasks.changes import TaskBulk, TaskChangeResource
from mainspring.api.tasks.creation import TaskCreation
from mainspring.api.tasks.effects import EffectLog
from mainspring.api.tasks.reading import TaskExplanation, TaskReading
from mainspring.domain import transitions
from mainspring.errors import Conflict
from mainspring.store.vault import NoKey
from mainspring.wire import tasks as wire
from mainspring.wire.dead_letters import LONGEST_EFFECT, CancelIn, CancelledOut, EffectIn, EffectOut
from mainspring.wire.workers import LogPage

_TASKS = Tag("Tasks")
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
_ONE_TIME_ONLY = docs.never(*docs.several("run_at", "delay"))
_PATCH_RULES = {**_ONE_TIME_ONLY, "properties": {"concurrency": None}}
_AFTERWARDS = links_by(
    "id",
    read=("getTask", "read it again"),
    executions=("listExecutions", "its executions"),
    edit=("editTask", "change it"),
    delete=("deleteTask", "remove it"),
    **{verb: (f"{verb}Task", "") for verb in ("cancel", "pause", "resume", "run")},
)
_THE_TASK = ok("The task as it is now.", wire.TaskOut, docs.ETAG, links=_AFTERWARDS)


def task_routes(
    reading: TaskReading,
    creation: TaskCreation,
    changes: TaskChangeResource,
    bulk: TaskBulk,
    explanation: TaskExplanation,
) -> Routes:
    return {
        "GET /v1/tasks": _page(reading),
        "POST /v1/tasks": _create(creation),
        "POST /v1/tasks/batch": _create_batch(creation),
        "POST /v1/tasks/cancel": _cancel_many(bulk),
        **_item_routes(reading, changes, explanation),
        **_TASKS.verbs(
            "/v1/tasks/{id}", "Task", _THE_TASK, if_match=True,
            cancel=(
                partial(changes.move, transitions.cancel), "Cancel a task",
                "A waiting task ends at once. A running one is asked to stop (`cancel_requested`). "
                "Calling twice is harmless.",
            ),
            pause=(
                partial(changes.move, transitions.pause), "Pause a task",
                "It will not start until it is resumed. Calling twice is harmless.",
            ),
            resume=(
                partial(changes.move, transitions.resume), "Resume a paused task",
                "It keeps its due time. Calling twice is harmless.",
            ),
            run=(
                changes.run, "Run a task now",
                "Makes a waiting task due at once. Calling twice is harmless.",
            ),
        ),
        "POST /v1/tasks/{id}/complete": _complete(changes),
        "GET /v1/tasks/{id}/logs": _logs(reading),
    }  # fmt: skip


def effect_routes(effects: EffectLog) -> Routes:
    example = {"mail": {"key": "welcome-mail/7", "answer": {"sent": True}}}
    rules = {"EffectIn": {"properties": {"ttl": docs.span(LONGEST_EFFECT)}}}
    return {
        "POST /v1/effects": Tag("Effects").tenant(
            "write", effects.note, "noteEffect", "Note that something is done once",
            "Of all calls with the same key exactly one is answered with 201; the others get 200 "
            "and the first one's answer, until `ttl` (7 days) has passed. A receiver that is "
            "called at least once can so have its effect once.",
            created_without_path("This call was the first.", EffectOut),
            ok("Another call was; this is its answer.", EffectOut),
            body=docs.Body(EffectIn, examples=example, rules=rules), or_scope="work",
        )
    }  # fmt: skip


def _page(reading: TaskReading) -> TenantOperation:
    return _TASKS.tenant(
        "read", reading.page, "listTasks", "List tasks",
        "Newest first, unfinished and finished ones. Filters are joined by *and*. A page may be "
        "short, or even empty, and still have a `next_cursor`: only its absence ends the list.",
        ok("A page of tasks.", wire.TaskPage, links=docs.next_page("listTasks")),
        params=[
            docs.Param("state", wire.State, "Only tasks in this state."),
            *docs.OF_TASKS,
            docs.Param("due_after", wire.Instant, "Only tasks due at or after this time."),
            docs.Param("due_before", wire.Instant, "Only tasks due before this time."),
            docs.Param("schedule_id", UUID, "Only tasks of this schedule."),
            docs.Param("workflow_run_id", UUID, "Only steps of this run."),
            docs.Param("payload", bool, "Show payloads as well."),
            *docs.PAGED,
        ],
    )  # fmt: skip


def _create(creation: TaskCreation) -> TenantOperation:
    examples = {"http": _HTTP_TASK, "handler": _HANDLER_TASK, "command": _COMMAND_TASK}
    doc = _TASKS.doc(
        "createTask", "Create a task",
        "Only `target` is required. The task is durable before this answers. Give either `run_at` "
        "or `delay`; neither means now, and so does a time that has passed.",
        created("The new task.", wire.TaskOut, docs.ETAG, links=_AFTERWARDS),
        ok("With `dry_run`: the task as it would be.", wire.TaskOut),
        params=[docs.DRY_RUN], problems=[NoKey],
        body=docs.Body(wire.TaskIn, examples=examples, rules={"TaskIn": _ONE_TIME_ONLY}),
    )  # fmt: skip
    return TenantOperation(
        "write", creation.one, doc, remembers_answers=True, fast=creation.create_fast
    )  # fmt: skip


def _create_batch(creation: TaskCreation) -> TenantOperation:
    first = {"first": docs.Link("getTask", {"id": "$response.body#/ids/0"})}
    doc = _TASKS.doc(
        "createTasks", "Create many tasks",
        "All of them or none. As one JSON document, or, with the Content-Type "
        "`application/x-ndjson`, as NDJSON with a task a line. Every error names the task's index.",
        created_without_path("The new tasks' ids.", wire.Ids, links=first),
        ok("With `dry_run`: all tasks are in order. The ids are not used.", wire.Ids),
        params=[docs.DRY_RUN], also_consumes=["application/x-ndjson"], problems=[NoKey],
        body=docs.Body(wire.BatchIn, examples={"two": {"tasks": [_HTTP_TASK, _HANDLER_TASK]}}),
    )  # fmt: skip
    return TenantOperation("write", creation.batch, doc, remembers_answers=True)


def _cancel_many(bulk: TaskBulk) -> TenantOperation:
    mails = {"queue": {"filter": {"queue": "mail", "label": "team:a"}}}
    return _TASKS.tenant(
        "write", bulk.cancel, "cancelTasks", "Cancel all tasks that match",
        "Waiting tasks end at once; running ones are asked to stop. Fields of the filter are "
        'joined by *and*; `{"filter": {}}` means every unfinished task that exists now. The '
        "work is done in steps of at most 1000 tasks: if the call breaks off, what was done stays "
        "done, and it can be repeated. A run of which steps are cancelled goes on without them as "
        "its workflow says; to end all of it, cancel the run.",
        ok("How many were, or with `dry_run` would be, cancelled.", CancelledOut),
        params=[docs.DRY_RUN], body=docs.Body(CancelIn, examples=mails),
    )  # fmt: skip


def _item_routes(
    reading: TaskReading, changes: TaskChangeResource, explanation: TaskExplanation
) -> Routes:
    sooner = {"sooner": {"delay": 60, "priority": 9}}
    return {
        "GET /v1/tasks/{id}": _TASKS.tenant(
            "read", reading.one, "getTask", "Read a task", "",
            _THE_TASK, docs.ResponseDoc(304, "It has not changed.", headers=[docs.ETAG]),
            params=[docs.IF_NONE_MATCH],
        ),
        "PATCH /v1/tasks/{id}": _TASKS.tenant(
            "write", changes.edit, "editTask", "Change a task",
            "While it has not started. A field that is given replaces the old value whole. A step "
            "that waits for others (`blocked`) takes its values from its workflow when its turn "
            "comes, and cannot be changed before.",
            _THE_TASK, params=[docs.DRY_RUN], if_match=True, problems=[Conflict, NoKey],
            body=docs.Body(wire.TaskPatch, examples=sooner, rules={"TaskPatch": _PATCH_RULES}),
        ),
        "DELETE /v1/tasks/{id}": _TASKS.tenant(
            "write", changes.delete, "deleteTask", "Delete a task",
            "Cancels it where needed, then removes it with its executions. The removal is noted in "
            "the audit log.", docs.GONE, if_match=True,
        ),
        "GET /v1/tasks/{id}/executions": _TASKS.tenant(
            "read", reading.executions, "listExecutions", "List a task's executions",
            "Finished executions, first to last.",
            ok("The executions.", wire.ExecutionList),
            params=[docs.Param("outcome", wire.OutcomeOut, "Only executions that ended so.")],
        ),
        "GET /v1/tasks/{id}/explain": _TASKS.tenant(
            "read", explanation.one, "explainTask", "Explain why a task is not running",
            "The gates in the order in which a task meets them, each passed or not. The verdict is "
            "the first that is not passed, or `ready`, `running` or `finished`; of a finished task "
            "the lateness says where the seconds between due and start went.",
            ok("The explanation.", wire.ExplanationOut),
        ),
    }  # fmt: skip


def _complete(changes: TaskChangeResource) -> TenantOperation:
    done = {"done": {"fence": 1, "status": "succeeded", "result": {"rows": 12}}}
    return Tag("Webhooks").tenant(
        "work", changes.complete, "completeTask", "Report the outcome of accepted work",
        "For a receiver that answered 202 with `Mainspring-Complete: later`. The fence is the one "
        "it was sent in `X-Mainspring-Fence`; a newer execution makes an older fence void (409).",
        ok("The task as it is now.", wire.TaskOut), body=docs.Body(wire.CompleteIn, examples=done),
        problems=[Conflict],
    )  # fmt: skip


def _logs(reading: TaskReading) -> TenantOperation:
    return _TASKS.tenant(
        "read", reading.logs, "listLogs", "Read a task's log lines",
        "In the order in which they came, over all executions.",
        ok("A page of lines.", LogPage), params=docs.NUMBERED,
    )  # fmt: skip
