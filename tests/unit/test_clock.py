"""The database's time as a node knows it: never ahead of it, never running back."""

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.clock import DatabaseClock, monotonic
from support.manual_clock import ManualClock

EPOCH = 1_800_000_000.0


class Machine:
    """A node's monotonic clock, and a database whose clock runs as fast but shows another time."""

    def __init__(self) -> None:
        self.monotonic = 1000.0
        self.offset = EPOCH
        self.clock = DatabaseClock()

    def read_monotonic(self) -> float:
        return self.monotonic

    def database(self) -> float:
        return self.monotonic + self.offset

    def sample(self, *, there: float = 0.0, back: float = 0.0) -> float:
        """Ask the database; the question and the answer take their time."""
        sent = self.monotonic
        self.monotonic += there
        told = self.database()
        self.monotonic += back
        return self.clock.sample(told, sent=sent, received=self.monotonic)


@pytest.fixture
def machine() -> Iterator[Machine]:
    found = Machine()
    with mock.patch("mainspring.clock.monotonic", found.read_monotonic):
        yield found


def test_a_clock_without_an_anchor_says_so(machine: Machine) -> None:
    assert not machine.clock.anchored
    with pytest.raises(RuntimeError, match="not been anchored"):
        machine.clock.now()


def test_the_wall_clock_of_the_node_does_not_matter(machine: Machine) -> None:
    machine.sample()
    with mock.patch("time.time", return_value=0.0):
        assert machine.clock.now() == machine.database()
    machine.monotonic += 50.0
    assert machine.clock.now() == machine.database()


_delays = st.floats(0.0, 0.2)


@given(st.lists(st.tuples(_delays, _delays, st.floats(0.0, 5.0)), min_size=1, max_size=30))
def test_never_ahead_and_never_running_back(steps: list[tuple[float, float, float]]) -> None:
    machine = Machine()
    with mock.patch("mainspring.clock.monotonic", machine.read_monotonic):
        seen = []
        for there, back, rest in steps:
            machine.sample(there=there, back=back)
            machine.monotonic += rest
            seen.append(machine.clock.now())
            assert seen[-1] <= machine.database() + 1e-6
            assert machine.database() - seen[-1] <= 0.21
        assert all(earlier <= later for earlier, later in pairwise(seen))


def test_the_quickest_answer_counts(machine: Machine) -> None:
    machine.sample(back=0.2)
    assert machine.database() - machine.clock.now() == pytest.approx(0.2)
    machine.sample(back=0.01)
    assert machine.database() - machine.clock.now() == pytest.approx(0.01, abs=1e-6)
    machine.sample(back=0.2)
    machine.monotonic += 1.0
    assert machine.database() - machine.clock.now() == pytest.approx(0.01, abs=1e-6)


def test_a_clock_that_has_caught_up_is_exact(machine: Machine) -> None:
    """It is then as far off as the best sample was, to the last bit, and moves no more."""
    machine.sample()
    machine.offset -= 0.5
    for _ in range(8):
        machine.sample()
    machine.monotonic += 0.5
    assert machine.clock.now() - machine.database() == pytest.approx(0.25, abs=1e-6), "half way"
    machine.monotonic += 10.0
    assert machine.clock.now() == pytest.approx(machine.database(), abs=1e-6)
    for _ in range(100):
        machine.monotonic += 0.7
        assert machine.clock.now() == machine.monotonic + machine.clock._target


def test_a_clock_unread_for_long_still_slews(machine: Machine) -> None:
    """What passed before a sample says nothing about how far to follow it back."""
    machine.sample()
    machine.clock.now()
    machine.monotonic += 1000.0
    machine.offset -= 30.0
    machine.sample()
    assert machine.clock.now() - machine.database() == pytest.approx(30.0, abs=1e-3)


def test_an_answer_that_took_long_tells_nothing(machine: Machine) -> None:
    machine.sample()
    assert machine.sample(back=5.0) == 0.0
    assert machine.clock.now() == pytest.approx(machine.database())


@pytest.mark.parametrize("jump", [2.0, 120.0, 3600.0, 8 * 3600.0])
def test_a_jump_forward_is_followed_at_once(machine: Machine, jump: float) -> None:
    """Of the database's clock, or of ours that did not count while the machine slept."""
    machine.sample()
    machine.clock.now()
    machine.offset += jump
    assert machine.sample(back=0.1) == pytest.approx(jump - 0.1)
    assert machine.database() - machine.clock.now() == pytest.approx(0.1, abs=1e-3)


def test_a_jump_forward_counts_while_a_jump_back_is_slewed(machine: Machine) -> None:
    machine.sample()
    machine.offset -= 100.0
    machine.sample()
    machine.clock.now()
    machine.offset += 300.0
    assert machine.sample() == pytest.approx(300.0)
    assert machine.clock.now() == pytest.approx(machine.database(), abs=1e-3)


@pytest.mark.parametrize("jump", [-2.0, -120.0, -7200.0])
def test_a_jump_back_is_noticed_and_slewed(machine: Machine, jump: float) -> None:
    machine.sample()
    before = machine.clock.now()
    machine.offset += jump
    assert machine.sample() == pytest.approx(jump)
    assert machine.clock.now() == pytest.approx(before, abs=1e-3)
    assert machine.clock.measured() == pytest.approx(machine.database(), abs=1e-3)
    caught_up = _run_until(machine, lambda: abs(machine.clock.now() - machine.database()) < 0.01)
    # The clock may have to stand still for the jump's time.
    assert caught_up <= abs(jump) + 400.0


def test_the_steady_clock_goes_on_whatever_the_database_says(machine: Machine) -> None:
    machine.sample()
    machine.clock.now()
    machine.offset -= 7200.0
    machine.sample()
    began, stands_at = machine.clock.steady(), machine.clock.now()
    machine.monotonic += 60.0
    machine.sample()
    assert machine.clock.now() == pytest.approx(stands_at, abs=1e-3)
    assert machine.clock.steady() - began == 60.0


def test_the_steady_clock_counts_while_the_machine_sleeps() -> None:
    if not hasattr(time, "CLOCK_BOOTTIME"):
        pytest.skip("this system does not tell how long it slept")
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= monotonic() <= time.clock_gettime(time.CLOCK_BOOTTIME)


def _run_until(machine: Machine, done: Callable[[], bool]) -> float:
    """Seconds that pass, with a sample in each of them, while time never runs back."""
    seconds, last = 0.0, machine.clock.now()
    while not done():
        machine.monotonic += 1.0
        seconds += 1.0
        machine.sample()
        now = machine.clock.now()
        assert now >= last
        last = now
        assert seconds < 20_000
    return seconds


def test_a_manual_clock_moves_when_it_is_moved() -> None:
    clock = ManualClock(5.0)
    assert clock.now() == clock.now() == 5.0
    clock.advance(2.5)
    assert (clock.now(), clock.steady()) == (7.5, 2.5)
    clock.jump_back(3.0)
    clock.advance(1.0)
    assert (clock.now(), clock.measured(), clock.steady()) == (7.5, 5.5, 3.5)
    clock.advance(4.0)
    assert (clock.now(), clock.measured(), clock.steady()) == (9.5, 9.5, 7.5)
