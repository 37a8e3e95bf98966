"""The world: virtual time, one source of chance, processes, and a network with faults."""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from uuid import UUID

from simulation.loop import Process

EPOCH = 1_800_000_000.0
"""What the database's clock shows when the world begins."""


MOST_AT_ONCE = 2000
"""How much may happen at one moment; more is a loop that waits for nothing."""


class SimulationFailed(AssertionError):
    """The world reached a state that Mainspring promises never to reach."""


@dataclass(frozen=True, slots=True)
class FaultRates:
    """How often things go wrong. Shares are per statement, rates per second."""

    slow: float
    request_lost: float
    answer_lost: float
    late: float
    duplicate_report: float
    hint_lost: float
    crash_rate: float
    pause_rate: float
    clock_jump_rate: float

    @classmethod
    def draw(cls, rng: Random) -> "FaultRates":
        """Every seed has rates of its own; in most of them some are zero."""

        def sometimes(value: float, share: float = 0.6) -> float:
            return value if rng.random() < share else 0.0

        return cls(
            slow=rng.choice((0.002, 0.02, 0.2)),
            request_lost=sometimes(rng.choice((0.02, 0.1))),
            answer_lost=sometimes(0.05),
            late=sometimes(0.02, 0.3),
            duplicate_report=sometimes(0.2),
            hint_lost=rng.choice((0.0, 0.3, 1.0)),
            crash_rate=sometimes(0.08),
            pause_rate=sometimes(0.08),
            clock_jump_rate=sometimes(0.05, 0.2),
        )


NO_FAULTS = FaultRates(0.002, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


class World:
    """Runs events and processes in the order of virtual time; chance decides between equals."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.faults = FaultRates.draw(self.rng)
        self.processes: list[Process] = []
        self.now = 0.0
        self.life = 0
        """How often the database was set back."""
        self.down_until = 0.0
        """When the database is back that was."""
        self.trace: Callable[[str], None] | None = None
        self.begun_twice: list[tuple[UUID, int]] = []
        """Executions that one node's executor was given a second time."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._skew = 0.0
        self._stood_still = 0

    def database_clock(self) -> float:
        return EPOCH + self.now + self._skew

    def monotonic(self) -> float:
        return self.now

    def uuid(self) -> UUID:
        return UUID(int=self.rng.getrandbits(128), version=4)

    def jump_database_clock(self, seconds: float) -> None:
        self._skew += seconds

    def at(self, when: float, event: Callable[[], None]) -> None:
        self._sequence += 1
        heappush(self._events, (max(when, self.now), self._sequence, event))

    def later(self, delay: float, event: Callable[[], None]) -> None:
        self.at(self.now + delay, event)

    def delay(self) -> float:
        """How long a message travels: mostly short, sometimes very long."""
        slow = self.faults.slow
        return min(1.0, self.rng.expovariate(1 / slow) * (20 if self.rng.random() < 0.1 else 1))

    def duration(self, rng: Random, *, short: float, longest: float) -> float:
        """How long an execution takes: this share of them is short, others may outlast a lease;
        without faults there is only the rest to be done."""
        if self.faults is NO_FAULTS:
            return rng.uniform(0.0, 0.1)
        chance = rng.random()
        if chance < 0.3:
            return 0.0
        return rng.uniform(0.0, 1.0) if chance < short else rng.uniform(4.0, longest)

    def start_process(self) -> Process:
        process = Process(self.monotonic)  # type: ignore[abstract]  # it is all that is used
        self.processes.append(process)
        return process

    def note(self, what: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.now:9.4f}  {what}")

    def step(self) -> None:
        """The next thing that happens, wherever that is."""
        self.processes = [process for process in self.processes if not process.dead]
        turns = [process.next_turn() for process in self.processes]
        event = self._events[0][0] if self._events else float("inf")
        when = min([*turns, event])
        if when == float("inf"):
            raise SimulationFailed("nothing will ever happen again")
        self._stood_still = 0 if when > self.now else self._stood_still + 1
        if self._stood_still > MOST_AT_ONCE:
            raise SimulationFailed("a process spins: time does not go on")
        self.now = max(self.now, when)
        candidates = [p for p, turn in zip(self.processes, turns, strict=True) if turn <= self.now]
        chosen = self.rng.randrange(len(candidates) + (event <= self.now))
        if chosen < len(candidates):
            candidates[chosen].turn()
        else:
            heappop(self._events)[2]()
