"""The http executor by itself: assignments in, reports out, no database."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any
from uuid import UUID

from mainspring.clock import monotonic, wall_clock
from mainspring.domain.execution import Execution, Report
from mainspring.domain.retry import RetryPolicy
from mainspring.domain.task import SealedHeaders, Target, TaskSpec
from mainspring.domain.webhook import WebhookProfile
from mainspring.execution.egress_guard import EgressRules, parse_networks
from mainspring.execution.http import HttpExecutor, HttpSettings
from mainspring.execution.send_queues import Caps
from mainspring.execution.transfers import SenderSettings
from mainspring.observe.metrics import Metrics

LOOPBACK = EgressRules(parse_networks("127.0.0.0/8,::1/128"))
SETTINGS = HttpSettings(Caps(1000, 500, 100), SenderSettings(), LOOPBACK, "Mainspring/test")

_numbers = count(1)


class WallClock:
    """Good enough where nothing is compared with a database."""

    def now(self) -> float:
        return wall_clock()

    def measured(self) -> float:
        return wall_clock()

    def steady(self) -> float:
        return monotonic()


class Profiles:
    """Profiles that tests write by hand."""

    def __init__(self) -> None:
        self.by_tenant: dict[int, WebhookProfile] = {}

    async def profiles(self, tenant_ids: Sequence[int]) -> Mapping[int, WebhookProfile]:
        return {t: self.by_tenant[t] for t in tenant_ids if t in self.by_tenant}


def execution(
    url: str,
    *,
    tenant: int = 1,
    method: str = "POST",
    payload: bytes = b'{"n":1}',
    timeout: float = 10.0,
    headers: dict[str, str] | None = None,
    on: list[int | str] | None = None,
    secret: SealedHeaders | None = None,
) -> Execution:
    now = wall_clock()
    target = Target("http", url=url, method=method, headers=headers, secret=secret)
    spec = TaskSpec(target, timeout, retry=RetryPolicy(on=on))
    task_id = UUID(int=next(_numbers) << 64)
    return Execution(tenant, task_id, 3, 0, 2, 1, now, now, now + 15, spec, payload, now - 60)


class Deliveries:
    """An executor and what it reported."""

    def __init__(self, settings: HttpSettings, profiles: Profiles) -> None:
        self.profiles = profiles
        self.reports: dict[UUID, Report] = {}
        self._came = asyncio.Condition()
        self.metrics = Metrics()
        self.executor = HttpExecutor(
            WallClock(),
            self._report,
            settings,
            profiles.profiles,
            lambda sealed: {"X-Secret": sealed},
            self.metrics,
        )

    def _report(self, reports: Sequence[Report]) -> None:
        for report in reports:
            assert report.execution.id not in self.reports, "reported twice"
            self.reports[report.execution.id] = report
        self._wakes = asyncio.ensure_future(self._wake())

    async def _wake(self) -> None:
        async with self._came:
            self._came.notify_all()

    async def until_reported(self, *wanted: Execution, within: float = 20.0) -> list[Report]:
        async with asyncio.timeout(within), self._came:
            await self._came.wait_for(lambda: all(w.id in self.reports for w in wanted))
        return [self.reports[each.id] for each in wanted]

    async def deliver(self, url: str, **fields: Any) -> Report:
        wanted = execution(url, **fields)
        self.executor.start([wanted])
        return (await self.until_reported(wanted))[0]


@asynccontextmanager
async def deliveries(
    settings: HttpSettings = SETTINGS, profiles: Profiles | None = None
) -> AsyncIterator[Deliveries]:
    made = Deliveries(settings, profiles or Profiles())
    try:
        yield made
    finally:
        await made.executor.stop(0)


def with_sender(**changes: Any) -> HttpSettings:
    return replace(SETTINGS, sender=replace(SETTINGS.sender, **changes))
