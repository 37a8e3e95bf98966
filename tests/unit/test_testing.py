"""The helpers for users' tests: handlers inline, and a scheduler in virtual time."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

import mainspring
from mainspring import App, Context, NonRetryable, RetryAfter
from mainspring.sdk.targets import Retry
from mainspring.testing.inline import Trial
from mainspring.testing.virtual import VirtualTime


@pytest.fixture
def app() -> App:
    return App()


class TestInline:
    def test_a_result_with_its_logs_and_progress(self, app: App) -> None:
        @app.task
        async def add(a: int, b: int, ctx: Context) -> int:
            ctx.log("adding")
            ctx.progress(0.5)
            await asyncio.sleep(0)
            assert mainspring.current() is ctx
            return a + b

        ran = Trial(attempt=2).run(add, 1, b=2)
        assert ran.succeeded
        assert (ran.result, ran.logs, ran.progress) == (3, ["adding"], 0.5)

    def test_how_it_can_fail(self, app: App) -> None:
        @app.task
        def fail(how: str) -> None:
            raise {
                "plain": ValueError("no"),
                "for good": NonRetryable("never"),
                "later": RetryAfter(60),
            }[how]

        plain, final, later = (Trial().run(fail, how) for how in ("plain", "for good", "later"))
        assert (plain.status, plain.error, plain.retryable) == ("failed", "ValueError: no", True)
        assert (final.retryable, final.error) == (False, "never")
        assert (later.retryable, later.retry_after) == (True, 60)

    def test_a_result_that_is_not_json(self, app: App) -> None:
        @app.task
        def weird() -> object:
            return object()

        ran = Trial().run(weird)
        assert (ran.code, ran.retryable) == ("bad-result", False)

    def test_once_is_once_over_all_executions(self, app: App) -> None:
        @app.task
        def charge(ctx: Context) -> tuple[bool, bool]:
            return ctx.once("charge"), ctx.once("charge")

        trial = Trial()
        assert trial.run(charge).result == [True, True]  # the same execution may ask again
        trial.fence = 2
        assert trial.run(charge).result == [False, False]
        assert Trial().run(charge).result == [True, True]  # another task

    def test_an_async_once(self, app: App) -> None:
        @app.task
        async def charge(ctx: Context) -> bool:
            return await ctx.aonce("charge")

        assert Trial().run(charge).result is True

    def test_a_timeout(self, app: App) -> None:
        @app.task
        async def slow() -> None:
            await asyncio.sleep(60)

        assert Trial(timeout=0.01).run(slow).code == "timeout"

    def test_cancelled_before_it_begins(self, app: App) -> None:
        @app.task
        def patient(ctx: Context) -> bool:
            return ctx.wait(60)

        assert Trial(cancelled=True).run(patient).result is True


class TestVirtualTime:
    def test_days_pass_in_no_time(self, app: App) -> None:
        @app.task
        def remind(who: str) -> str:
            return who.upper()

        with VirtualTime(app, start="2027-03-01T08:00:00+00:00") as world:
            task = remind.schedule("ann", delay=timedelta(days=3))
            assert world.advance(days=2) == []
            (run,) = world.advance(days=5)
            assert run.at == datetime(2027, 3, 4, 8, tzinfo=UTC)
            assert run.result == "ANN"
            assert app.client.tasks.get(task.id).state == "completed"
            assert world.now == datetime(2027, 3, 8, 8, tzinfo=UTC)

    def test_schedules_keep_to_the_wall_clock(self, app: App) -> None:
        @app.periodic(cron="30 2 * * *", timezone="Europe/Berlin")
        def nightly() -> None: ...

        with VirtualTime(app, start="2027-03-26T12:00:00+00:00") as world:
            world.advance(days=4)
            hours = [run.at.strftime("%d %H:%M") for run in world.runs_of(nightly)]
        # On the 28th the clocks skip 02:30: it runs at the first instant after the gap.
        assert hours == ["27 01:30", "28 01:00", "29 00:30", "30 00:30"]

    def test_durations_may_be_written_in_two_ways(self, app: App) -> None:
        @app.task(name="slow")
        async def slow() -> None:
            await asyncio.sleep(120)

        with VirtualTime(app, start="2027-03-01T08:00:00+00:00") as world:
            retry: Retry = {"max_attempts": 2, "initial": "PT1H", "jitter": 0}
            target = {"type": "handler", "name": "slow"}
            app.client.tasks.create(target, timeout=timedelta(minutes=1), retry=retry)
            app.client.schedules.create("s", {"target": target}, interval="PT12H", spread="PT1M")
            world.advance(hours=2)
            first, second = world.runs
        assert (first.status, second.at - first.at) == ("timed_out", timedelta(hours=1, minutes=1))

    def test_retries_back_off(self, app: App) -> None:
        @app.task(retries={"max_attempts": 4, "initial": 60, "factor": 2, "jitter": 0})
        def flaky(ctx: Context) -> int:
            if ctx.attempt < 4:
                raise ValueError("not yet")
            return ctx.attempt

        with VirtualTime(app) as world:
            flaky.delay()
            world.advance(hours=1)
            waits = [(run.at - world.start).total_seconds() for run in world.runs]
            assert [round(wait) for wait in waits] == [0, 60, 180, 420]
            assert [run.status for run in world.runs] == ["failed"] * 3 + ["succeeded"]

    def test_handlers_sleep_in_virtual_time_and_can_time_out(self, app: App) -> None:
        @app.task(timeout=7200)
        async def long(hours: int) -> int:
            await asyncio.sleep(3600 * hours)
            return hours

        with VirtualTime(app) as world:
            long.delay(1)
            long.with_options(retries=0).delay(3)
            world.advance(hours=4)
            ends = {(run.status, (run.ended - run.at).total_seconds()) for run in world.runs}
            assert ends == {("succeeded", 3600.0), ("timed_out", 7200.0)}

    def test_concurrency_and_priority_are_the_engines(self, app: App) -> None:
        @app.task(max_concurrency=1)
        async def turn(n: int) -> None:
            await asyncio.sleep(10)

        with VirtualTime(app) as world:
            for n in range(3):
                turn.with_options(priority=n).delay(n)
            world.advance(minutes=1)
            # The first holds the key already when the others come.
            assert [run.payload["n"] for run in world.runs] == [0, 2, 1]
            begins = [(run.at - world.start).total_seconds() for run in world.runs]
            assert [round(begin) for begin in begins] == [0, 10, 20]

    def test_a_task_may_make_tasks(self, app: App) -> None:
        @app.task
        def leaf(n: int) -> int:
            return n

        @app.task
        def root() -> list[int]:
            return [n for n in range(3) if leaf.schedule(n, delay=60 * n)]

        with VirtualTime(app) as world:
            root.delay()
            world.advance(minutes=10)
            assert [run.result for run in world.runs_of(leaf)] == [0, 1, 2]

    def test_a_world_leaves_the_app_as_it_was(self, app: App) -> None:
        with VirtualTime(app):
            assert "client" in vars(app)
        assert "client" not in vars(app)

    def test_a_slow_run_makes_the_next_one_skip(self, app: App) -> None:
        @app.periodic(interval=60)
        @app.task(timeout=3600)
        async def sweep() -> None:
            await asyncio.sleep(150)

        with VirtualTime(app) as world:
            world.advance(minutes=10)
            begins = [(run.at - world.start).total_seconds() for run in world.runs]
            assert begins == [60, 240, 420]

    def test_the_fixture(self, app: App, virtual_time: Callable[..., VirtualTime]) -> None:
        @app.task
        def one() -> None: ...

        world = virtual_time(app)
        one.delay()
        assert [run.name for run in world.advance(seconds=1)] == ["one"]
