"""A clock that tests set and advance."""


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._now = self._measured = start
        self._steady = 0.0

    def now(self) -> float:
        return self._now

    def measured(self) -> float:
        return self._measured

    def steady(self) -> float:
        return self._steady

    def advance(self, seconds: float) -> None:
        self._steady += seconds
        self._measured += seconds
        self._now = max(self._now, self._measured)

    def jump_back(self, seconds: float) -> None:
        """The database's clock does: `now` stands still until that shows the same again."""
        self._measured -= seconds
