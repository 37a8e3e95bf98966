"""Functions that become tasks: their arguments, options and schedules, without any server."""

import asyncio
import math
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import mainspring
from mainspring import App, Context, InvalidArguments
from mainspring.sdk.arguments import Signature
from mainspring.sdk.encoding import encode
from mainspring.sdk.periodic import Owner
from mainspring.sdk.worker.outcomes import success


def app() -> App:
    return App(url="http://127.0.0.1:1", api_key="key")


@dataclass
class Order:
    number: int
    note: str = ""


class Money(msgspec.Struct):
    amount: int
    currency: str


class Model:
    """What of a pydantic model matters here: the two methods that are called."""

    def __init__(self, size: int) -> None:
        self.size = size

    @classmethod
    def model_validate(cls, value: Any) -> "Model":
        if not isinstance(value, dict) or not isinstance(value.get("size"), int):
            raise ValueError("size must be a whole number")
        return cls(value["size"])

    def model_dump(self, mode: str) -> dict[str, int]:
        assert mode == "json"
        return {"size": self.size}


class TestArguments:
    def test_a_payload_has_a_member_per_parameter(self) -> None:
        def ship(order: Order, price: Money, express: bool = False) -> None: ...

        payload = Signature(ship).pack((Order(7),), {"price": Money(3, "EUR")})
        assert msgspec.json.decode(payload) == {
            "order": {"number": 7, "note": ""},
            "price": {"amount": 3, "currency": "EUR"},
        }
        call = Signature(ship).unpack(payload, None)
        assert call.args == (Order(7), Money(3, "EUR"))
        assert call.kwargs == {}

    def test_a_default_is_that_of_the_code_that_runs(self) -> None:
        def old(a: int, b: int = 1, c: int = 2) -> None: ...

        def new(a: int, b: int = 5, c: int = 2) -> tuple[int, int, int]:
            return a, b, c

        payload = Signature(old).pack((0,), {"c": 9})
        call = Signature(new).unpack(payload, None)
        assert new(*call.args, **call.kwargs) == (0, 5, 9)

    def test_every_kind_of_parameter(self) -> None:
        def everything(
            a: int, /, b: str, *rest: int, ctx: Context, k: float = 2.0, **more: Any
        ) -> Any:
            return a, b, rest, ctx, k, more

        signature = Signature(everything)
        payload = signature.pack((1, "x", 2, 3), {"z": [1]})
        ctx: Any = SimpleNamespace()
        call = signature.unpack(payload, ctx)
        assert everything(*call.args, **call.kwargs) == (1, "x", (2, 3), ctx, 2.0, {"z": [1]})

    def test_pydantic_models(self) -> None:
        def fit(model: Model) -> None: ...

        payload = Signature(fit).pack((Model(4),), {})
        assert payload == b'{"model":{"size":4}}'
        assert Signature(fit).unpack(payload, None).args[0].size == 4
        with pytest.raises(InvalidArguments, match="whole number"):
            Signature(fit).unpack(b'{"model": {"size": "big"}}', None)

    @pytest.mark.parametrize(
        ("args", "kwargs"),
        [(("seven",), {}), ((), {}), ((1, 2), {}), ((1,), {"wrong": 1}), ((object(),), {})],
    )
    def test_what_does_not_fit_is_refused_before_it_is_sent(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        def take(n: int) -> None: ...

        with pytest.raises(InvalidArguments):
            Signature(take).pack(args, kwargs)

    @pytest.mark.parametrize(
        "value",
        [
            math.nan,
            [1, -math.inf],
            {"a": ({"b": math.inf}, None)},
            Model(math.nan),  # type: ignore[arg-type]
            {math.nan},
        ],
    )
    def test_what_is_no_number_to_json_is_not_sent_as_null(self, value: object) -> None:
        def take(n: Any) -> None: ...

        with pytest.raises(InvalidArguments, match=r"JSON has no -?(nan|inf)"):
            Signature(take).pack((value,), {})
        verdict = success(value)
        assert (verdict.status, verdict.code, verdict.retryable) == ("failed", "bad-result", False)
        assert "JSON has no" in verdict.message

    def test_null_is_sent(self) -> None:
        value = {"a": [None, (1.5,), Model(2)], "b": msgspec.Raw(b"[null]"), "c": "null"}
        assert encode(value) == b'{"a":[null,[1.5],{"size":2}],"b":[null],"c":"null"}'

    @pytest.mark.parametrize(
        "payload", [b"{}", b"[]", b'{"n": "x"}', b'{"n": 1, "m": 2}', b"nonsense", b""]
    )
    def test_what_does_not_fit_is_refused_on_arrival(self, payload: bytes) -> None:
        def take(n: int) -> None: ...

        with pytest.raises(InvalidArguments):
            Signature(take).unpack(payload, None)

    def test_a_type_that_only_the_checker_knows_is_not_checked(self) -> None:
        def take(x: "Unknown") -> None: ...  # type: ignore[name-defined]  # noqa: F821

        assert Signature(take).pack(("anything",), {}) == b'{"x":"anything"}'


class TestTasks:
    def test_calling_it_calls_it(self) -> None:
        @app().task
        def double(n: int) -> int:
            return 2 * n

        assert double(4) == 8
        assert double.__name__ == "double"

    def test_async_functions_run_too_with_a_default_context(self) -> None:
        @app().task(name="other")
        async def attempt(ctx: Context) -> int:
            return ctx.attempt

        assert asyncio.run(attempt()) == 1

    def test_options_become_fields(self) -> None:
        @app().task(
            name="mail.send",
            queue="mail",
            retries=3,
            timeout=60,
            max_concurrency=2,
            priority=9,
            labels={"team": "growth"},
            requires={"tags": ["gpu"]},
        )
        def send(to: str) -> None: ...

        wanted = send.prepare("ann")
        payload = wanted.pop("payload")
        assert bytes(payload) == b'{"to":"ann"}'
        assert wanted == {
            "target": {"type": "handler", "name": "mail.send"},
            "name": "mail.send",
            "queue": "mail",
            "retry": {"max_attempts": 4},
            "timeout": 60,
            "concurrency": {"key": "task:mail.send", "limit": 2},
            "priority": 9,
            "labels": {"team": "growth"},
            "requires": {"tags": ["gpu"]},
        }
        assert send.with_options(queue="slow").prepare("bob")["queue"] == "slow"
        assert send.options.queue == "mail"

    def test_names_are_unique_and_not_the_servers(self) -> None:
        mine = app()

        @mine.task
        def one() -> None: ...

        with pytest.raises(InvalidArguments, match="already"):
            mine.task(name="one")(lambda: None)
        with pytest.raises(InvalidArguments, match="server"):
            mine.task(name="mainspring.noop")(lambda: None)

    @pytest.mark.parametrize(
        ("function", "message"),
        [
            ("mail", "no function"),
            (lambda: None, "cannot name a task"),
            (partial(print, 1), "cannot name a task"),
            (Signature.pack, None),
        ],
    )
    def test_what_can_be_a_task(self, function: Any, message: str | None) -> None:
        if message is None:
            assert app().task(function).name == "pack"
            return
        with pytest.raises(InvalidArguments, match=message):
            app().task(function)

    @pytest.mark.parametrize("name", ["größe", "a b", "x" * 201, "a\n", "-a"])
    def test_names_are_those_that_the_server_takes(self, name: str) -> None:
        with pytest.raises(InvalidArguments, match="cannot name a task"):
            app().task(name=name)(lambda: None)

    def test_a_generator_is_no_task(self) -> None:
        def rows() -> Any:
            yield 1

        async def more() -> Any:
            yield 1

        for function in (rows, more):
            with pytest.raises(InvalidArguments, match="generator"):
                app().task(function)

    def test_a_task_is_not_made_a_task_again(self) -> None:
        mine = app()
        one = mine.task(name="one")(lambda: None)
        with pytest.raises(InvalidArguments, match="is a task already"):
            mine.task(name="two")(one)

    def test_objects_that_can_be_called(self) -> None:
        class Sender:
            name = "theirs"

            def __init__(self) -> None:
                self.options = {"their": "own"}
                self.name = "theirs"

            async def __call__(self, to: str) -> str:
                return to

        made = app().task(name="send")(Sender())
        assert (made.name, made.is_async, made.options.queue) == ("send", True, None)
        assert bytes(made.prepare("ann")["payload"]) == b'{"to":"ann"}'

    def test_what_goes_with_cron_alone(self) -> None:
        @app().task
        def one() -> None: ...

        with pytest.raises(InvalidArguments, match="timezone goes with cron"):
            one.schedule(delay=3, timezone="Europe/Berlin")
        with pytest.raises(InvalidArguments, match="schedule_name goes with cron"):
            asyncio.run(one.aschedule(schedule_name="x"))

    def test_times_that_contradict_each_other(self) -> None:
        @app().task
        def one() -> None: ...

        moment = datetime(2027, 1, 1, tzinfo=UTC)
        with pytest.raises(InvalidArguments, match="not both"):
            one.schedule(at=moment, delay=3)
        with pytest.raises(InvalidArguments, match="one of"):
            one.schedule(cron="@daily", delay=3)
        with pytest.raises(InvalidArguments, match="offset"):
            one.schedule(at=datetime(2027, 1, 1))  # noqa: DTZ001

    def test_a_periodic_needs_no_arguments(self) -> None:
        with pytest.raises(InvalidArguments, match="missing"):

            @app().periodic(cron="@daily")
            def report(day: str) -> None: ...

    def test_a_periodic_with_arguments(self) -> None:
        mine = app()

        @mine.periodic(cron="0 8 * * *", timezone="Europe/Berlin", kwargs={"day": "today"})
        @mine.task(queue="reports")
        def report(day: str) -> None: ...

        template = mine.periodics["report"].template(Owner("shop", 7))
        assert bytes(template["payload"]) == b'{"day":"today"}'
        assert template["queue"] == "reports"
        assert template["labels"] == {"mainspring-app": "shop", "mainspring-app-version": "7"}


def test_what_json_does_not_know_is_refused() -> None:
    with pytest.raises(InvalidArguments, match="JSON"):
        encode({"x": object()})


def test_a_statement_for_every_driver() -> None:
    enqueue = mainspring.Enqueue({"target": mainspring.handler("x"), "payload": {"a": 1}})
    assert enqueue.psycopg()[0].count("%s") == 2
    assert enqueue.asyncpg()[1] == enqueue.psycopg()[1] == tuple(enqueue.named()[1].values())
    assert msgspec.json.decode(enqueue.named()[1]["payload"]) == {"a": 1}
    for extra in ({"jitter": 3}, {"retry": {"factor": 2}}, {"requires": {"cpu": 1}}):
        with pytest.raises(InvalidArguments, match="takes no"):
            mainspring.Enqueue({"target": mainspring.handler("x"), **extra})


@pytest.mark.parametrize("kind", [App, mainspring.Client])
def test_a_field_that_no_address_has_is_refused(kind: Any) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'ulr'"):
        kind(ulr="http://127.0.0.1:1", api_key="key")


def test_there_is_no_current_context_outside_of_a_handler() -> None:
    with pytest.raises(LookupError):
        mainspring.current()
    assert "mainspring.sdk.context" in sys.modules
