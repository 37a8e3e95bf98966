"""Metrics of a node for Prometheus, built once and passed to all parts that count."""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SIZES = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000)


class Distribution(Collector):
    """A histogram for one thread: the library's own takes locks, and ten times as long."""

    def __init__(
        self, name: str, help: str, bounds: tuple[float, ...], labels: tuple[str, ...] = ()
    ) -> None:
        self._name = name
        self._labelnames = labels
        self._parts: dict[tuple[str, ...], Distribution] = {}
        self._documentation = help
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def labels(self, *values: str) -> "Distribution":
        """Return the histogram with these labels."""
        part = self._parts.get(values)
        if part is None:
            part = Distribution(self._name, self._documentation, self._bounds)
            self._parts[values] = part
        return part

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for values, part in self._parts.items() if self._labelnames else [((), self)]:
            family.add_metric(values, part._buckets(), part._sum)
        yield family

    def _buckets(self) -> list[tuple[str, float]]:
        names = [*map(str, map(float, self._bounds)), "+Inf"]
        return list(zip(names, map(float, accumulate(self._counts)), strict=True))


class Metrics:
    """All metrics of a node, in a registry of its own: two nodes in one process do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._count_requests()
        self._count_tasks()
        self._count_the_node()

    def exposition(self) -> bytes:
        """All values as Prometheus text."""
        return generate_latest(self.registry)

    def open_exposition(self) -> bytes:
        """All values as OpenMetrics text."""
        text: bytes = openmetrics.generate_latest(self.registry)  # type: ignore[no-untyped-call]
        return text

    def _count_requests(self) -> None:
        self.http_requests = self._counter(
            "http_requests", "Requests answered", "route", "method", "status"
        )
        self.http_seconds = self._histogram(
            "http_request_seconds", "Time to answer a request", _SECONDS, "route"
        )
        self.connections_refused = self._counter(
            "connections_refused", "Connections refused before a request was served", "reason"
        )

    def _count_tasks(self) -> None:
        self.tasks_created = self._counter("tasks_created", "Tasks created through this node")
        self.tasks_claimed = self._counter("tasks_claimed", "Tasks claimed by this node")
        self.executions = self._counter(
            "executions", "Executions that ended, by outcome", "outcome"
        )
        self.tasks_finished = self._counter(
            "tasks_finished", "Tasks that ended in this node's hands, by final state", "state"
        )
        self.start_delay = self._histogram("start_delay_seconds", "From due to started", _SECONDS)
        self.claim_batch = self._histogram(
            "claim_batch_size", "Tasks claimed in one statement", _SIZES
        )
        self.record_batch = self._histogram(
            "record_batch_size", "Outcomes recorded in one statement", _SIZES
        )
        self.fenced_outcomes = self._counter(
            "fenced_outcomes", "Outcomes refused because a newer execution exists"
        )

        self._count_schedules()
        self._count_workers()
        self._count_webhooks()
        self._count_workflows()

    def _count_workflows(self) -> None:
        self.workflow_runs_started = self._counter(
            "workflow_runs_started", "Runs of workflows that began through this node"
        )
        self.workflow_runs_finished = self._counter(
            "workflow_runs_finished",
            "Runs of workflows that ended in this node's hands, by final state",
            "state",
        )
        self.steps_released = self._counter(
            "workflow_steps_released", "Steps of workflows whose turn came in this node's hands"
        )

    def _count_workers(self) -> None:
        self.leases_given = self._counter("leases_given", "Tasks leased to workers by this node")
        self.polls_waiting = self._gauge("polls_waiting", "Workers that wait here for tasks")
        self.worker_held = self._gauge(
            "worker_leases", "Tasks of this node's partitions that workers hold"
        )
        self.worker_losses = self._counter(
            "worker_losses", "Executions lost together with their worker"
        )
        self.poisoned = self._counter(
            "poisoned_tasks", "Tasks given up because they killed their workers"
        )

    def _count_schedules(self) -> None:
        self.occurrences = self._counter(
            "occurrences", "Occurrences of schedules decided on, by decision", "decision"
        )
        self.decision_delay = self._histogram(
            "schedule_decision_delay_seconds", "From a schedule's time to its decision", _SECONDS
        )
        self.schedules_overdue = self._gauge(
            "schedules_overdue", "Schedules whose time has passed without a decision"
        )

    def _count_webhooks(self) -> None:
        self.webhooks = self._counter(
            "webhooks",
            "Webhooks that ended, by what came of them: 2xx, 3xx, 4xx, 5xx, later (accepted, to be"
            " completed through the API), timeout, connection, bad-answer, refused (by the egress"
            " guard), cancelled",
            "result",
        )
        self.webhook_seconds = self._histogram(
            "webhook_seconds", "From sending a webhook to its answer, or to giving up", _SECONDS
        )
        self.webhooks_in_flight = self._gauge(
            "webhooks_in_flight", "Webhooks sent and not answered yet"
        )
        self.webhooks_waiting = self._gauge(
            "webhooks_waiting", "Webhooks of claimed tasks that wait for their turn to be sent"
        )

    def _count_the_node(self) -> None:
        self.partitions_owned = self._gauge("partitions_owned", "Partitions this node owns")
        self.window_entries = self._gauge("window_entries", "Tasks held in memory")
        self.running = self._gauge("running_tasks", "Tasks running in partitions of this node")
        self.node_fenced = self._counter(
            "node_fenced", "Times this node found that it was declared dead"
        )
        self.database_errors = self._counter("database_errors", "Calls that lost the database")
        self.loop_stalls = self._counter(
            "loop_stalls", "Times that the event loop stood still for `loop_stall` or longer"
        )
        self.longest_stall = self._gauge(
            "loop_longest_stall_seconds", "The longest of these times so far"
        )

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(f"mainspring_{name}", help, labels, registry=self.registry)

    def _gauge(self, name: str, help: str) -> Gauge:
        return Gauge(f"mainspring_{name}", help, registry=self.registry)

    def _histogram(
        self, name: str, help: str, buckets: tuple[float, ...], *labels: str
    ) -> Distribution:
        made = Distribution(f"mainspring_{name}", help, buckets, labels)
        self.registry.register(made)
        return made
