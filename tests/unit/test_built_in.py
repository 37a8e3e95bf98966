"""The built-in handlers."""

from collections.abc import Sequence

from mainspring.domain.execution import Report
from mainspring.execution.builtin import BuiltInExecutor
from support.manual_clock import ManualClock
from support.rows import execution, row


async def test_an_unknown_name_gets_the_list_of_names() -> None:
    reports: list[Report] = []

    def report(made: Sequence[Report]) -> None:
        reports.extend(made)

    executor = BuiltInExecutor(ManualClock(1_800_000_000.0), report)
    executor.start([execution(row(1))])
    await executor.stop(grace=5)
    (made,) = reports
    assert made.error is not None
    assert made.error.message == (
        "there is no built-in handler 'work'; there are: mainspring.fail, mainspring.noop, "
        "mainspring.sleep, mainspring.workflow"
    )


async def test_a_clock_that_jumps_back_takes_no_time_away() -> None:
    reports: list[Report] = []
    clock = ManualClock(1_800_000_000.0)
    executor = BuiltInExecutor(clock, reports.extend)
    executor.start([execution(row(1))])
    clock.jump_back(3600)
    clock.advance(20)
    await executor.stop(grace=5)
    assert [made.finished - made.started for made in reports] == [20.0]
