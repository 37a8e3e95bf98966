"""Outcomes of executions: what the recorder writes, and leases and tasks that expire."""

from collections.abc import Collection, Iterable, Sequence
from uuid import UUID

from mainspring.domain.execution import Report
from mainspring.domain.lateness import EndedWaiting
from mainspring.domain.outcome_rules import Finish, RetryLater
from mainspring.domain.partitions import Ownership
from mainspring.domain.rows import TaskRow
from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Store, columns_of, sparse
from mainspring.store.task_refs import Seen, TaskRef, owner_of, ref_columns, seen_in

SQL = queries.load("outcomes")


class OutcomeStore(Store):
    """Every call is one statement, and so one transaction and one round trip."""

    async def expire_leases(
        self,
        held: Iterable[TaskRef],
        *,
        count_crash: Collection[UUID] = (),
        presumed: Collection[UUID] = (),
    ) -> Seen:
        """End leases that are over, or whose worker has restarted, guarded by fence. Those in
        `count_crash` count as lost with their worker, those in `presumed` as started."""
        call = SQL["expire_leases"](
            **ref_columns(held, "fences"), count_crash=list(count_crash), presumed=list(presumed)
        )
        return seen_in(await self._database.fetch(*call))

    async def expire(self, ownership: Ownership, *, limit: int) -> list[UUID]:
        """End tasks of our partitions that were not started by their expiry, some at a time."""
        rows = await SQL["expire"].fetch(self._database, **owner_of(ownership), limit=limit)
        return [row["id"] for row in rows]

    async def explain_ends(self, ended: Sequence[EndedWaiting]) -> None:
        """Record what tasks waited for that ended while they waited."""
        ordered = sorted(ended, key=lambda one: (one.tenant_id, one.id))
        columns = columns_of(EndedWaiting._fields, ordered)
        await SQL["explain_ends"].run(self._database, **columns)

    # Outcomes --------------------------------------------------------------------------------

    async def finish(self, ownership: Ownership, finished: Iterable[Finish]) -> set[UUID]:
        """Move tasks to history, guarded by fence; return which were accepted."""
        rows = await SQL["finish"].fetch(self._database, **finish_arguments(ownership, finished))
        return {row["id"] for row in rows}

    async def retry(self, ownership: Ownership, retries: Iterable[RetryLater]) -> list[TaskRow]:
        """Schedule tasks again, except those asked to cancel, guarded by fence; return those."""
        ordered = sorted(retries, key=by_task)
        reports = [r.report for r in ordered]
        return await SQL["retry"].rows(
            self._database,
            TaskRow,
            **owner_of(ownership),
            **_report_columns(reports),
            delays=[r.delay for r in ordered],
            run_ids=sparse([r.execution.workflow_run_id for r in reports]),
            own_lateness=[r.own_lateness or {} for r in ordered],
            earlier=sparse([r.earlier.stored() if r.earlier else None for r in ordered]),
        )


def finish_arguments(ownership: Ownership, finished: Iterable[Finish]) -> dict[str, object]:
    """Return the arguments of `finish`, rows in lock order."""
    ordered = sorted(finished, key=by_task)
    reports = [f.report for f in ordered]
    return {
        **owner_of(ownership),
        **_report_columns(reports),
        **columns_of(("result",), reports),
        **columns_of(("state", "dead_because", "sla_met", "blame", "lateness"), ordered),
        # Of the execution, where that of its task is another one.
        "own_lateness": sparse(
            [None if f.own_lateness is f.lateness else f.own_lateness or {} for f in ordered]
        ),
    }


def _report_columns(reports: Sequence[Report]) -> dict[str, object]:
    """Return one array per field of these reports."""
    fields = ("outcome", "started", "finished", "error", "status_code", "response")
    executions = [r.execution for r in reports]
    return {**columns_of(("tenant_id", "id", "fence"), executions), **columns_of(fields, reports)}


def by_task(item: Finish | RetryLater) -> tuple[int, UUID]:
    """The order in which tasks are locked."""
    return item.report.execution.tenant_id, item.report.execution.id
