"""Announcements of what a statement of this node has committed.

The engine hears of the rows in partitions of this node; the owners of others find wake rows, which
the same statement wrote, and get a hint to look.
"""

from collections.abc import Collection, Sequence

from mainspring.domain.rows import TaskRow
from mainspring.node.signals import Signals
from mainspring.node.state import NodeState
from mainspring.store.workflows.step_rows import Moved


class Announcer:
    """The one way to announce a commit."""

    def __init__(self, state: NodeState, signals: Signals) -> None:
        self._state = state
        self._signals = signals

    def announce(self, rows: Sequence[TaskRow] = (), changed: Collection[int] = ()) -> None:
        """Announce new or changed tasks, and the partitions that have wake rows; in those of others
        there are some for the rows, too."""
        ours = self._state.engine.partitions
        mine = [row for row in rows if row.partition in ours]
        self._state.engine.update(mine, self._state.clock.now())
        self._state.request_dispatch()
        if not ours.isdisjoint(changed):
            self._state.request_wakes()
        if elsewhere := {row.partition for row in rows}.union(changed) - ours:
            self._signals.wake_owners(elsewhere)

    def announce_runs(self, moved: Moved) -> None:
        """Announce and count what a transaction did to runs of workflows. Steps with an eager lease
        are known to the engine already."""
        for state, count in moved.ended.items():
            self._state.metrics.workflow_runs_finished.labels(state).inc(count)
        self._state.metrics.steps_released.inc(len(moved.rows))
        self.announce([row for row in moved.rows if row.state != "running"], moved.told)
