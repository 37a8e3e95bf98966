"""`client.workflows` and `client.workflow_runs`."""

from collections.abc import AsyncIterator, Mapping
from typing import Any
from uuid import UUID

from msgspec import field

from mainspring.sdk.encoding import present
from mainspring.sdk.resources.base import ApiResource, Page
from mainspring.sdk.sync_async import F, both, each
from mainspring.sdk.workflow import Workflow
from mainspring.wire.workflows import RunOut, RunStepOut, WorkflowOut, WorkflowSummary


class Definition(WorkflowOut, kw_only=True):
    """One version of a workflow."""

    steps: Any
    input: Any = field(default_factory=dict)
    etag: str | None = None


class RunStep(RunStepOut, kw_only=True):
    """A step of a run; its items where it is done for a list."""

    items: Any = None


class WorkflowRun(RunOut, kw_only=True):
    """A run of a workflow. Lists leave out the input, the steps and the graph."""

    steps: list[RunStep] = field(default_factory=list)
    graph: Any = None
    etag: str | None = None

    @property
    def finished(self) -> bool:
        return self.finished_at is not None

    def step(self, step_id: str) -> RunStep:
        """Return the step of this id."""
        return next(step for step in self.steps if step.id == step_id)


class Workflows(ApiResource[F]):
    """Named, versioned graphs of steps."""

    _path = "/v1/workflows"

    @both
    async def create(
        self, workflow: Workflow | Mapping[str, Any], *, idempotency_key: str | None = None
    ) -> Definition:
        """Make a workflow, or the next version of the one of its name."""
        body = workflow.definition() if isinstance(workflow, Workflow) else workflow
        return await self._call("POST", self._path, body, answer=Definition, key=idempotency_key)

    @both
    async def get(self, name: str, *, version: int | None = None) -> Definition:
        """Return a version of it; the latest, if none is named."""
        query = {"version": version}
        return await self._call("GET", self._at(name), answer=Definition, query=query)

    @each
    def list(self, *, limit: int | None = None) -> AsyncIterator[WorkflowSummary]:
        """Yield the workflows, by name."""
        return self._every(self._path, Page[WorkflowSummary], {"limit": limit})

    @both
    async def delete(self, name: str) -> None:
        """Take it out of use; runs that have begun go on."""
        await self._call("DELETE", self._at(name))

    @both
    async def run(
        self,
        name: str,
        input: Mapping[str, Any] | None = None,
        *,
        version: int | None = None,
        idempotency_key: str | None = None,
    ) -> WorkflowRun:
        """Start a run."""
        body, path = present(input=input or {}, version=version), self._at(name, "runs")
        return await self._call("POST", path, body, answer=WorkflowRun, key=idempotency_key)


class WorkflowRuns(ApiResource[F]):
    """Runs of workflows."""

    _path = "/v1/workflow-runs"

    @both
    async def get(self, run_id: UUID | str) -> WorkflowRun:
        return await self._call("GET", self._at(run_id), answer=WorkflowRun)

    @each
    def list(
        self,
        *,
        workflow: str | None = None,
        state: str | None = None,
        schedule_id: UUID | str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[WorkflowRun]:
        """Yield all that match, newest first, without their steps."""
        query = {"workflow": workflow, "state": state, "schedule_id": schedule_id, "limit": limit}
        return self._every(self._path, Page[WorkflowRun], query)

    @both
    async def wait(self, run_id: UUID | str, timeout: float | None = None) -> WorkflowRun:
        """Return the run once it has ended, however it did; TaskUnfinished if that takes longer."""
        return await self._until_finished(self._at(run_id), WorkflowRun, timeout)

    @both
    async def cancel(self, run_id: UUID | str) -> WorkflowRun:
        return await self._post(WorkflowRun, run_id, "cancel")

    @both
    async def pause(self, run_id: UUID | str) -> WorkflowRun:
        """Start no more steps for now."""
        return await self._post(WorkflowRun, run_id, "pause")

    @both
    async def resume(self, run_id: UUID | str) -> WorkflowRun:
        return await self._post(WorkflowRun, run_id, "resume")

    @both
    async def retry(self, run_id: UUID | str) -> WorkflowRun:
        """Begin again from the steps that failed."""
        return await self._post(WorkflowRun, run_id, "retry")

    @both
    async def retry_step(self, run_id: UUID | str, step: str) -> WorkflowRun:
        """Run one step again, and those after it."""
        return await self._post(WorkflowRun, run_id, "steps", step, "retry")

    @both
    async def skip_step(self, run_id: UUID | str, step: str) -> WorkflowRun:
        """Go on as if the step were not there."""
        return await self._post(WorkflowRun, run_id, "steps", step, "skip")
