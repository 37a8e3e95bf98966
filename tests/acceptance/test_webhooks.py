"""Webhooks from the API to a receiver and back, on a real node: secrets, retries, completion."""

import asyncio
import re
import secrets
import subprocess
import sys
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
from standardwebhooks import Webhook

from mainspring.domain.lateness import WORTH_TELLING
from support.client import Client
from support.cluster import Cluster
from support.receivers import Received, answer, answering, receiver
from support.waiting import eventually

KEY = secrets.token_hex(32)
SETTINGS = {"egress_allow": "127.0.0.0/8", "secrets_key": KEY}
QUICK_RETRY = {"max_attempts": 3, "initial": 0.05, "factor": 1, "jitter": 0}


def http(url: str, **target: Any) -> dict[str, Any]:
    return {"target": {"type": "http", "url": url, **target}, "payload": {"n": 1}}


async def finished(client: Client, task_id: UUID, within: float = 20.0) -> dict[str, Any]:
    """The task once it is over."""
    found: dict[str, Any] = {}

    async def over() -> bool:
        found.update((await client.get(f"/v1/tasks/{task_id}")).json())
        return found["state"] in ("completed", "failed", "cancelled")

    await eventually(over, within=within, what="the task is over")
    return found


async def executions(client: Client, task_id: UUID) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await client.get(f"/v1/tasks/{task_id}/executions")).json()[
        "items"
    ]
    return items


async def test_a_webhook_is_delivered_and_its_answer_kept(cluster: Cluster) -> None:
    node = await cluster.start(**SETTINGS)
    client = node.client(await cluster.tenant())
    async with receiver(answering(answer(200, content_type="application/json"))) as there:
        task_id = await client.create(http(there.url()))
        task = await finished(client, task_id)
        assert task["state"] == "completed"
        assert task["result"]["status_code"] == 200
        assert task["result"]["body"] == {"ok": True}
        assert there.requests[0].body == b'{"n":1}'
        (execution,) = await executions(client, task_id)
        assert (execution["outcome"], execution["status_code"]) == ("succeeded", 200)
        assert execution["response"] == {"ok": True}


async def test_failures_are_retried_and_then_given_up(cluster: Cluster) -> None:
    node = await cluster.start(**SETTINGS)
    client = node.client(await cluster.tenant())
    async with (
        receiver(answering(answer(500, b"broken"))) as broken,
        receiver(answering(answer(404, b"gone"))) as gone,
        receiver(answering(answer(429, b"", retry_after="86400"))) as busy,
    ):
        tired = await client.create({**http(broken.url()), "retry": QUICK_RETRY})
        lost = await client.create({**http(gone.url()), "retry": QUICK_RETRY})
        chosen = await client.create(
            {**http(gone.url("/again")), "retry": {**QUICK_RETRY, "on": [404]}}
        )
        capped = await client.create(
            {**http(busy.url()), "retry": {**QUICK_RETRY, "max_delay": 1, "max_attempts": 2}}
        )
        assert (await finished(client, tired))["error"]["code"] == "http-500"
        ended = await executions(client, tired)
        assert [(t["status_code"], t["response"]) for t in ended] == [(500, "broken")] * 3
        assert (await finished(client, lost))["attempts"] == 1
        assert (await finished(client, chosen))["attempts"] == 3
        assert (await finished(client, capped))["attempts"] == 2
        assert len({r.headers["webhook-id"] for r in broken.requests}) == 1
        assert [r.headers["x-mainspring-attempt"] for r in broken.requests] == ["1", "2", "3"]
        (scheduled,) = {r.headers["x-mainspring-scheduled-at"] for r in broken.requests}
        wanted = (await client.get(f"/v1/tasks/{tired}")).json()["run_at"]
        assert datetime.fromisoformat(scheduled) == datetime.fromisoformat(wanted)


RESERVED = {
    "Host": "x",
    "content-LENGTH": "1",
    "Transfer-Encoding": "chunked",
    "Connection": "close",
    "Proxy-Authorization": "x",
    "webhook-signature": "v1,x",
    "X-Mainspring-Fence": "9",
}
"""Headers that are ours or the protocol's to set."""
SMUGGLING: list[tuple[dict[str, Any], str]] = [
    ({"url": "http://2130706433/"}, "/target/url"),
    ({"url": "http://0x7f.1/"}, "/target/url"),
    ({"url": "http://x/\r\nHost: y"}, "/target/url"),
    *(({"headers": {name: text}}, f"/target/headers/{name}") for name, text in RESERVED.items()),
    ({"secret_headers": {"Host": "x"}}, "/target/secret_headers/Host"),
    ({"headers": {"X-A": "1", "x-a": "2"}}, "/target/headers/x-a"),
    *(
        ({"headers": {"X-A": text}}, "/target/headers")
        for text in ("a\r\nX-B: b", "a\nb", "a\x00b")
    ),
    *(({"headers": {name: "1"}}, "/target/headers") for name in ("X A", "X-A\r\nX-B")),
    ({"auth": {"bearer": "a\r\nX-B: b"}}, "/target/auth/bearer"),
    ({"auth": {"bearer": "x"}, "headers": {"Authorization": "y"}}, "/target/auth"),
]


async def test_what_would_smuggle_is_refused(cluster: Cluster) -> None:
    client = (await cluster.start(**SETTINGS)).client(await cluster.tenant())
    for target, pointer in SMUGGLING:
        refused = await client.post("/v1/tasks", http(**{"url": "http://x.example/", **target}))
        assert refused.status == 422, (target, refused.body)
        assert refused.json()["errors"][0]["pointer"].startswith(pointer), (target, refused.body)
    for name in ("a\nb", "a\rb", 'a\r\n{"level": "info"}', "a\u0000b"):
        answered = await client.post("/v1/tasks", {**http("http://x.example/"), "name": name})
        assert answered.status == 422


async def test_both_secrets_sign_during_a_rotation(cluster: Cluster) -> None:
    node = await cluster.start(**SETTINGS)
    client = node.client(await cluster.tenant())
    made = await client.post("/v1/secrets", {"name": "main"})
    assert made.status == 201
    first = made.json()
    rotated = (await client.post(f"/v1/secrets/{first['id']}/rotate", {"overlap": 600})).json()
    second = rotated["current"]
    assert rotated["previous"]["expires_at"] is not None
    assert "secret" not in rotated["previous"]
    async with receiver(answering(answer(200))) as there:
        await finished(client, await client.create(http(there.url())))
        for each in (first, second):
            request = there.requests[0]
            assert Webhook(each["secret"]).verify(request.body, request.headers) == {"n": 1}
        listed = (await client.get("/v1/secrets")).json()["items"]
        assert {item["id"] for item in listed} == {first["id"], second["id"]}
        assert all("secret" not in item for item in listed)
        again = await client.post(f"/v1/secrets/{first['id']}/rotate")
        assert again.status == 409
        assert (await client.call("DELETE", f"/v1/secrets/{first['id']}")).status == 204
        await finished(client, await client.create(http(there.url())))
        assert len(there.requests[1].headers["webhook-signature"].split()) == 1
    stranger = node.client(await cluster.tenant("other"))
    assert (await stranger.get("/v1/secrets")).json()["items"] == []
    assert (await stranger.call("DELETE", f"/v1/secrets/{second['id']}")).status == 404
    assert (await stranger.post(f"/v1/secrets/{second['id']}/rotate")).status == 404


async def test_accepted_work_is_completed_later_on_any_node(cluster: Cluster) -> None:
    one, two = await cluster.pair(**SETTINGS)
    tenant = await cluster.tenant()
    later = answering(answer(202, b"", mainspring_complete="later"))
    async with receiver(later) as there:
        ids = [await one.client(tenant).create(http(there.url())) for _ in range(8)]

        async def all_arrived() -> bool:
            return len(there.requests) >= len(ids)

        await eventually(all_arrived, within=10, what="all webhooks arrive")
        fences = {
            r.headers["webhook-id"]: int(r.headers["x-mainspring-fence"]) for r in there.requests
        }
        for n, task_id in enumerate(ids):
            client = (one, two)[n % 2].client(tenant)
            path, fence = f"/v1/tasks/{task_id}/complete", fences[str(task_id)]
            stale = await client.post(path, {"fence": fence - 1, "status": "succeeded"})
            assert stale.status == 409
            done = await client.post(
                path, {"fence": fence, "status": "succeeded", "result": {"n": n}}
            )
            assert done.status == 200, done.body
            assert done.json()["state"] == "completed"
            assert done.json()["result"] == {"n": n}
            twice = await client.post(path, {"fence": fence, "status": "failed"})
            assert twice.status == 409
        stranger = one.client(await cluster.tenant("other"))
        refused = await stranger.post(
            f"/v1/tasks/{ids[0]}/complete", {"fence": 1, "status": "failed"}
        )
        assert refused.status == 404


async def test_accepted_work_that_failed_is_retried(cluster: Cluster) -> None:
    node = await cluster.start(**SETTINGS)
    client = node.client(await cluster.tenant())
    later = answering(answer(202, b"", mainspring_complete="later"))
    async with receiver(later) as there:
        task_id = await client.create({**http(there.url()), "retry": QUICK_RETRY, "timeout": 5})
        await there.arrived.wait()
        told = {"fence": 1, "status": "failed", "error": "no luck"}
        assert (await client.post(f"/v1/tasks/{task_id}/complete", told)).status == 200

        async def came_again() -> bool:
            return len(there.requests) == 2

        await eventually(came_again, within=10, what="the webhook comes again")
        told = {"fence": 2, "status": "failed", "error": "no luck", "retryable": False}
        done = await client.post(f"/v1/tasks/{task_id}/complete", told)
        assert done.json()["error"] == {"code": "failed", "message": "no luck"}


async def test_canaries_show_nowhere(cluster: Cluster) -> None:
    bearer, header, signing = (f"CANARY{n}" + secrets.token_hex(12) for n in range(3))

    async def echo(request: Received, writer: asyncio.StreamWriter) -> None:
        status = 500 if "fail" in request.path else 200
        writer.write(answer(status, request.raw_head, x_request_id=request.headers["x-key"]))

    node = await cluster.start(**SETTINGS, log_level="debug")
    client = node.client(await cluster.tenant())
    target = {"auth": {"bearer": bearer}, "secret_headers": {"X-Key": header}}
    own = "whsec_" + signing.encode().hex().ljust(48, "A")[:48]
    assert (await client.post("/v1/secrets", {"secret": own})).status == 201
    texts = []
    async with receiver(echo) as there:
        for url in (
            there.url(),
            there.url("/fail"),
            "http://127.0.0.1:1/",
            "http://no.such.invalid/",
        ):
            body = {**http(url, **target), "retry": {**QUICK_RETRY, "max_attempts": 2}}
            answered = await client.post("/v1/tasks", body, Idempotency_Key=url)
            texts.append(answered.body)
            task_id = UUID(answered.json()["id"])
            shown = answered.json()["target"]
            assert shown["auth"] == {"bearer": "***"}
            assert shown["secret_headers"] == {"X-Key": "***"}
            await finished(client, task_id)
            texts.append((await client.get(f"/v1/tasks/{task_id}")).body)
            texts.append((await client.get(f"/v1/tasks/{task_id}/executions")).body)
        assert there.requests[0].headers["authorization"] == f"Bearer {bearer}"
        assert there.requests[0].headers["x-key"] == header
    texts.append((await client.get("/v1/tasks?payload=true")).body)
    paths = ("/v1/secrets", "/v1/dead-letters", "/v1/audit", f"/v1/tasks/{task_id}/explain")
    texts += [(await client.get(path)).body for path in paths]
    hourly = {"name": "hourly", "cron": "@hourly", "task": http(there.url(), **target)}
    texts.append((await client.post("/v1/schedules", hourly)).body)
    texts.append((await client.get("/v1/schedules")).body)
    texts.append((await node.client(await cluster.operator()).get("/metrics")).body)
    bad = {**http("http://127.0.0.1/", **target), "name": 7}
    texts.append((await client.post("/v1/tasks", bad)).body)
    texts.append(node.output().encode())
    texts.append(await everything_in(cluster))
    for text in texts:
        for canary in (bearer, header, own, signing):
            assert canary.encode() not in text
            assert canary.encode().hex().encode() not in text


async def everything_in(cluster: Cluster) -> bytes:
    """All rows of all tables as text, bytes in hex as well as in clear."""
    tables = await cluster.evidence.rows(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
    )
    texts = []
    for table in tables:
        rows = await cluster.evidence.rows(f"SELECT t::text AS row FROM {table['relname']} t")
        texts += [row["row"] for row in rows]
    dump = "\n".join(texts)
    clear = [bytes.fromhex(found) for found in re.findall(r"\\x((?:[0-9a-f]{2})+)", dump)]
    assert clear, "the dump holds payloads and specs"
    return dump.encode() + b"\n".join(clear)


async def test_secrets_move_to_a_new_key(cluster: Cluster) -> None:
    node = await cluster.start(**SETTINGS)
    tenant = await cluster.tenant()
    client = node.client(tenant)
    made = (await client.post("/v1/secrets", {})).json()
    async with receiver(answering(answer(200))) as there:
        body = http(there.url(), auth={"bearer": "sesame"})
        task_id = await client.create({**body, "delay": 3600})
        yearly = {"name": "yearly", "cron": "@yearly", "task": body}
        schedule = (await client.post("/v1/schedules", yearly)).json()
        node.terminate()
        await node.ended()
        fresh = secrets.token_hex(32)
        rotate(cluster, secrets_key=fresh, secrets_keys_old=KEY)
        # The old key is gone for good now.
        successor = await cluster.start(**{**SETTINGS, "secrets_key": fresh})
        client = successor.client(tenant)
        await client.post(f"/v1/tasks/{task_id}/run")
        assert (await finished(client, task_id))["state"] == "completed"
        ran = await client.post(f"/v1/schedules/{schedule['id']}/run")
        assert (await finished(client, ran.json()["id"]))["state"] == "completed"
        for request in there.requests:
            assert request.headers["authorization"] == "Bearer sesame"
            assert Webhook(made["secret"]).verify(request.body, request.headers)
        assert len(there.requests) == 2


def rotate(cluster: Cluster, **settings: str) -> None:
    environment = {f"MAINSPRING_{name.upper()}": value for name, value in settings.items()}
    environment["DATABASE_URL"] = cluster.database_url
    command = [sys.executable, "-m", "mainspring", "secrets", "rotate"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "sealed 3 secrets anew\n"


async def test_a_schedule_ends_when_its_receiver_is_gone(cluster: Cluster) -> None:
    node = await cluster.start(**SETTINGS)
    client = node.client(await cluster.tenant())
    async with receiver(answering(answer(410, b"gone"))) as there:
        body = {
            "name": "gone",
            "cron": "* * * * * *",
            "stop_on_410": True,
            "task": http(there.url()),
        }
        schedule = (await client.post("/v1/schedules", body)).json()
        path = f"/v1/schedules/{schedule['id']}"

        async def ended() -> bool:
            return bool((await client.get(path)).json()["state"] == "ended")

        await eventually(ended, within=10, what="the schedule ends")
        fired = (await client.get(f"{path}/occurrences?decision=fired")).json()["items"]
        assert len(there.requests) == len(fired) <= 2
        letters = (await client.get("/v1/dead-letters")).json()["items"]
        assert {letter["task"]["schedule_id"] for letter in letters} == {schedule["id"]}
        assert {letter["task"]["nominal_at"] for letter in letters} == {
            line["nominal_at"] for line in fired
        }


async def test_a_task_that_waits_for_its_host_says_so(cluster: Cluster) -> None:
    node = await cluster.start(**SETTINGS, http_per_host=1)
    client = node.client(await cluster.tenant())
    release = asyncio.Event()

    async def held(_request: Received, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(answer(200))

    async with receiver(held) as there:
        first = await client.create(http(there.url()))
        await there.arrived.wait()
        second = await client.create({**http(there.url()), "sla": 0.001})
        told: dict[str, Any] = {}

        async def queued() -> bool:
            told.update((await client.get(f"/v1/tasks/{second}/explain")).json())
            return bool(told["verdict"] == "worker_queue")

        await eventually(queued, within=10, what="the second waits in the executor's queue")
        assert told["gates"] == [
            {
                "gate": "worker_queue",
                "passed": False,
                "detail": f"1 requests to 127.0.0.1:{there.port} are in flight,"
                " 0 are queued before it",
            }
        ]
        assert (await client.get(f"/v1/tasks/{first}/explain")).json()["verdict"] == "running"
        await asyncio.sleep(2 * WORTH_TELLING)  # a shorter wait is not told of
        release.set()
        task = await finished(client, second)
        assert task["lateness"]["worker_queue"] > 0
        assert (task["sla_met"], task["blame"]) == (False, "capacity")
        assert sum(task["lateness"].values()) == pytest.approx(late(task), abs=0.02)


def late(task: dict[str, Any]) -> float:
    started, due = (datetime.fromisoformat(task[name]) for name in ("started_at", "due_at"))
    return (started - due).total_seconds()


async def test_without_a_key_secrets_are_refused(cluster: Cluster) -> None:
    node = await cluster.start(egress_allow="127.0.0.0/8")
    client = node.client(await cluster.tenant())
    refused = await client.post("/v1/tasks", http("http://x.example/", auth={"bearer": "x"}))
    assert refused.status == 409
    assert (await client.post("/v1/secrets", {})).status == 409
    async with receiver(answering(answer(200))) as there:
        task = await finished(client, await client.create(http(there.url())))
        assert task["state"] == "completed"
        assert "webhook-signature" not in there.requests[0].headers


async def test_an_operator_opens_and_closes_places_for_a_tenant(cluster: Cluster) -> None:
    node = await cluster.start(secrets_key=KEY)
    tenant = await cluster.tenant()
    client, operator = node.client(tenant), node.client(await cluster.operator())
    async with receiver(answering(answer(200))) as there:
        blocked = await finished(client, await client.create(http(there.url())))
        assert blocked["error"]["code"] == "egress-blocked"
        path = f"/v1/tenants/{tenant.id}/egress"
        assert (await client.call("PUT", path, {"allow": ["127.0.0.0/8"]})).status == 403
        assert (await operator.call("PUT", path, {"allow": ["nonsense"]})).status == 422
        assert (await operator.call("PUT", path, {"allow": ["127.0.0.0/8"]})).status == 200
        opened = await finished(client, await client.create(http(there.url())))
        assert opened["state"] == "completed"


async def test_a_host_that_never_answers_starves_nobody_else(cluster: Cluster) -> None:
    """More tasks than the node has slots wait for one host: another tenant finds room at once."""
    settings = {**SETTINGS, "slots": 100, "http_per_tenant": 40, "http_per_host": 20}
    node = await cluster.start(**settings)
    stuck = node.client(await cluster.tenant("stuck"))
    quick = node.client(await cluster.tenant("quick"))

    async def never(_request: Received, _writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with receiver(never) as dead, receiver(answering(answer(200))) as alive:
        await stuck.batch([{**http(dead.url()), "timeout": 600}] * 500)

        async def full() -> bool:
            return len(dead.requests) == 20

        await eventually(full, within=10, what="the dead host has all it may have")
        ids = await quick.batch([http(alive.url())] * 50)
        await cluster.evidence.all_finished(ids, within=5)
        assert len(dead.requests) == 20

        async def running() -> int:
            return await cluster.evidence.value(
                "SELECT count(*) FROM tasks WHERE state = 'running'"
            )

        async def settled() -> bool:
            return await running() >= 80

        await eventually(settled, within=5, what="it has four fifths of the node")
        assert await running() == 80, "and no more"
