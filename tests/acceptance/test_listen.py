"""`mainspring listen`: what a developer sees."""

import re
from pathlib import Path

from mainspring.domain.execution import Outcome
from mainspring.domain.webhook import SigningKey, WebhookProfile
from mainspring.execution.signing import format_secret
from support.process import START_WITHIN, MainspringProcess
from support.waiting import eventually
from support.webhooks import SETTINGS, Profiles, deliveries

MINE, OTHER = SigningKey("hmac", b"m" * 32), SigningKey("hmac", b"o" * 32)


async def test_it_prints_verifies_and_fails_on_demand(tmp_path: Path) -> None:
    process = MainspringProcess(
        tmp_path / "log",
        *("listen", "--port", "0", "--secret", format_secret(MINE), "--fail", "1"),
        environment={},
    )

    async def address() -> str | None:
        found = re.search(r"listening on (\S+)", process.output())
        return found[1] if found else None

    try:
        url = await eventually(address, within=START_WITHIN, what="it says where it listens")
        assert url is not None
        profiles = Profiles()
        profiles.by_tenant = {1: WebhookProfile((MINE,)), 2: WebhookProfile((OTHER,))}
        async with deliveries(SETTINGS, profiles) as sent:
            failed = await sent.deliver(f"{url}/a")
            assert (failed.outcome, failed.status_code) == (Outcome.FAILED, 503)
            assert (await sent.deliver(f"{url}/b")).outcome is Outcome.SUCCEEDED
            assert (await sent.deliver(f"{url}/c", tenant=2)).outcome is Outcome.SUCCEEDED
            assert (await sent.deliver(f"{url}/d", tenant=3)).outcome is Outcome.SUCCEEDED
        output = process.output()
        assert "#1 POST /a → 503" in output
        assert "#2 POST /b → 200" in output
        assert '{"n":1}' in output
        assert re.findall(r"signature: (\w+)", output) == ["valid", "valid", "INVALID", "none"]
    finally:
        process.kill()
