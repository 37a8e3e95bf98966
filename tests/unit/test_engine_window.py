"""The window: small, whatever the backlog, and nothing is forgotten."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mainspring.domain.rows import StreamKey, TaskRow
from mainspring.engine.entry import Phase
from mainspring.engine.window import Refill, Window
from support.rows import row


def admit_all(window: Window, rows: list[TaskRow]) -> list[int]:
    return [r.id.int for r in rows if window.admit(r, r.due) is not None]


def test_a_stream_is_capped() -> None:
    window = Window(stream_cap=2, tenant_cap=10)
    assert admit_all(window, [row(n, due=n) for n in range(4)]) == [0, 1]
    assert admit_all(window, [row(9, priority=9)]) == [9]
    assert len(window) == 3


def test_a_tenant_is_capped_in_the_streams_it_opens() -> None:
    window = Window(stream_cap=5, tenant_cap=2)
    assert admit_all(window, [row(n, priority=n) for n in range(4)]) == [0, 1]
    assert admit_all(window, [row(9, tenant=2), row(8, partition=1)]) == [9, 8]


def test_streams_that_nobody_can_run_leave_room_for_others() -> None:
    window = Window(stream_cap=256, tenant_cap=1024)
    stuck = [row(1000 * k + n, due=n, key=f"key-{k}") for k in range(20) for n in range(300)]
    admit_all(window, stuck)
    assert admit_all(window, [row(1, due=400.0, priority=9)]) == [1]


def test_many_streams_of_a_tenant_share_its_room() -> None:
    window = Window(stream_cap=256, tenant_cap=1024)
    for k in range(1100):
        admit_all(window, [row(1000 * k + n, due=n, key=f"key-{k}") for n in range(300)])
    assert len(window) < 10 * 1024


def test_what_is_due_now_takes_the_place_of_what_is_due_later() -> None:
    window = Window(stream_cap=3, tenant_cap=10)
    admit_all(window, [row(n, due=9.0 + n) for n in range(3)])
    assert admit_all(window, [row(7, due=1.0)]) == [7]
    assert [entry.row.id.int for entry in window.displaced()] == [2]
    assert {entry.row.id.int for entry in window} == {0, 1, 7}
    window.remove(next(entry for entry in window if entry.row.id.int == 7))
    window.remove(next(entry for entry in window if entry.row.id.int == 0))
    assert [refill.since for refill in window.refills()] == [11.0]


def test_what_is_being_claimed_keeps_its_place() -> None:
    window = Window(stream_cap=1, tenant_cap=10)
    admit_all(window, [row(1, due=9.0)])
    next(iter(window)).phase = Phase.CLAIMING
    assert admit_all(window, [row(2, due=1.0)]) == []


def test_nothing_is_asked_for_while_all_fits() -> None:
    window = Window(stream_cap=2, tenant_cap=10)
    admit_all(window, [row(1), row(2)])
    for entry in window:
        window.remove(entry)
    assert not window.wants_more
    assert window.refills() == []


def test_more_is_asked_for_when_half_is_free() -> None:
    window = Window(stream_cap=4, tenant_cap=10)
    rows = [row(n, due=n) for n in range(6)]
    admit_all(window, rows)
    first, second, *rest = list(window)
    window.remove(first)
    assert not window.wants_more
    window.remove(second)
    (refill,) = window.refills()
    assert refill == Refill(rest[0].stream, 4.0, {entry.row.id for entry in rest}, 2)
    assert window.refills() == []


def test_a_full_answer_means_that_there_may_be_more() -> None:
    window = Window(stream_cap=2, tenant_cap=10)
    rows = [row(n, due=n) for n in range(5)]
    admit_all(window, rows[:3])
    for entry in window:
        window.remove(entry)
    (refill,) = window.refills()
    admit_all(window, rows[2:4])
    window.refilled(refill, rows[2:4])
    assert not window.wants_more
    window.remove(next(iter(window)))
    (refill,) = window.refills()
    assert refill.since == 3.0


def test_what_was_turned_away_comes_before_what_is_due_later() -> None:
    window = Window(stream_cap=1, tenant_cap=10)
    admit_all(window, [row(1, due=1.0), row(2, due=2.0)])
    window.remove(next(iter(window)))
    assert admit_all(window, [row(3, due=3.0)]) == []
    (refill,) = window.refills()
    assert (refill.since, refill.limit) == (2.0, 1)


def test_a_stream_that_was_filled_meanwhile_asks_later() -> None:
    window = Window(stream_cap=1, tenant_cap=10)
    admit_all(window, [row(1, due=1.0), row(2, due=2.0)])
    window.remove(next(iter(window)))
    assert window.wants_more
    admit_all(window, [row(3, due=1.5)])
    assert window.refills() == []
    window.remove(next(iter(window)))
    (refill,) = window.refills()
    assert (refill.since, refill.limit) == (2.0, 1)


def test_a_refill_that_failed_is_asked_for_again() -> None:
    window = Window(stream_cap=1, tenant_cap=10)
    admit_all(window, [row(1, due=1.0), row(2, due=2.0)])
    window.remove(next(iter(window)))
    (refill,) = window.refills()
    window.not_refilled(refill)
    assert [again.since for again in window.refills()] == [2.0]


def test_a_partition_leaves_with_everything() -> None:
    window = Window(stream_cap=1, tenant_cap=10)
    admit_all(window, [row(1), row(2), row(3, partition=1)])
    assert [entry.row.id.int for entry in window.remove_partitions({0})] == [1]
    assert len(window) == 1
    assert not window.wants_more


STREAM_CAP, TENANT_CAP = 2, 5


class WindowModel(RuleBasedStateMachine):
    """Tasks are written, started and deleted in any order, refills are late or fail; in the end
    everything that is in the database has been in the window."""

    def __init__(self) -> None:
        super().__init__()
        self.window = Window(stream_cap=STREAM_CAP, tenant_cap=TENANT_CAP)
        self.database: dict[int, TaskRow] = {}
        self.asked: list[Refill] = []
        self.number = 0

    @rule(due=st.integers(0, 9), priority=st.integers(0, 4))
    def write(self, due: int, priority: int) -> None:
        self.number += 1
        new = self.database[self.number] = row(self.number, due=due, priority=priority)
        self.window.admit(new, new.due)

    @precondition(lambda self: len(self.window) > 0)
    @rule(which=st.integers(0, 99))
    def start(self, which: int) -> None:
        entry = list(self.window)[which % len(self.window)]
        self.window.remove(entry)
        del self.database[entry.row.id.int]

    @precondition(lambda self: self.window.wants_more)
    @rule()
    def ask(self) -> None:
        self.asked += self.window.refills()

    @precondition(lambda self: bool(self.asked))
    @rule()
    def fail(self) -> None:
        self.window.not_refilled(self.asked.pop())

    @precondition(lambda self: bool(self.asked))
    @rule()
    def answer(self) -> None:
        refill = self.asked.pop()
        rows = self._load(refill)
        for found in rows:
            if self.window.get(found.id) is None:
                self.window.admit(found, found.due)
        self.window.refilled(refill, rows)

    @invariant()
    def is_small(self) -> None:
        streams = {entry.stream for entry in self.window}
        assert all(
            sum(entry.stream == stream for entry in self.window) <= STREAM_CAP for stream in streams
        )
        assert len(self.window) <= TENANT_CAP + STREAM_CAP * 5

    def teardown(self) -> None:
        """Let everything start that can: the database must run empty."""
        for _ in range(4 * self.number + 20):
            if self.window.wants_more:
                self.ask()
            while self.asked:
                self.answer()
            if len(self.window):
                self.start(0)
        assert not self.database, "some tasks were forgotten"

    def _load(self, refill: Refill) -> list[TaskRow]:
        """What the loader reads: more of a stream, or a few of every stream of a partition."""
        ordered = sorted(self.database.values(), key=lambda found: found.due)
        if refill.stream.queue is not None:
            return [
                found
                for found in ordered
                if found.priority == refill.stream.priority and found.due >= refill.since
                if found.id not in refill.known
            ][: refill.limit]
        streams: dict[int, list[TaskRow]] = {}
        for found in ordered:
            streams.setdefault(found.priority, []).append(found)
        return [found for rows in streams.values() for found in rows[: STREAM_CAP + 1]]


TestWindowModel = WindowModel.TestCase
TestWindowModel.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_streams_are_known_by_all_that_makes_tasks_unlike() -> None:
    window = Window(stream_cap=9, tenant_cap=99)
    found = window.admit(row(1, queue="mail", key="red", priority=3, partition=7), 0.0)
    assert found is not None
    assert found.stream == StreamKey(7, 1, "mail", "handler:work", "red", 3)
