"""The lightest worker that is still a worker: leases, starts nothing, reports. For benches.

Run as a process of its own; when its standard input ends, it prints what it did and exits.
"""

import argparse
import asyncio
import json
import sys
import time
from datetime import datetime
from typing import Any

import aiohttp
import msgspec

from benchmarks.harness import API_KEY

Json = dict[str, Any]
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class PlainWorker:
    """Some polls at a time, each of which reports what it got before it asks again."""

    def __init__(self, session: aiohttp.ClientSession, most: int, *, timed: bool) -> None:
        self._session = session
        self._most = most
        self._timed = timed
        self.done = 0
        self.delays: list[float] = []

    async def run(self, name: str) -> None:
        asked = {"worker": name, "incarnation": "bench", "handlers": ["noop"], "max": self._most}
        body = _encode({**asked, "wait": 5})
        while True:
            tasks = (await self._post("/v1/leases", body))["tasks"]
            if not tasks:
                continue
            now = time.time()
            if self._timed:
                due = (datetime.fromisoformat(t["context"]["due_at"]) for t in tasks)
                self.delays += [now - moment.timestamp() for moment in due]
            outcomes = [{"id": t["id"], "fence": t["fence"], "status": "succeeded"} for t in tasks]
            judged = await self._post("/v1/leases/report", _encode({"outcomes": outcomes}))
            self.done += sum(o["status"] == "accepted" for o in judged["outcomes"])

    async def _post(self, path: str, body: bytes) -> Json:
        async with self._session.post(path, data=body) as answer:
            assert answer.status == 200, await answer.text()
            found: Json = _decode(await answer.read())
            return found


async def _main(url: str, polls: int, most: int, timed: bool) -> None:
    headers = {"Authorization": f"Bearer {API_KEY}", "Content-Type": "application/json"}
    async with aiohttp.ClientSession(url, headers=headers) as session:
        worker = PlainWorker(session, most, timed=timed)
        # A worker's polls go by names of their own: each is a worker to the node.
        running = [asyncio.create_task(worker.run(f"plain-{n}")) for n in range(polls)]
        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        await asyncio.wait([*running, ended], return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            task.cancel()
        failed = await asyncio.gather(*running, return_exceptions=True)
        problems = [repr(f) for f in failed if not isinstance(f, asyncio.CancelledError)]
    print(json.dumps({"done": worker.done, "delays": worker.delays, "problems": problems}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--polls", type=int, default=4)
    parser.add_argument("--most", type=int, default=500)
    parser.add_argument("--timed", action="store_true")
    given = parser.parse_args()
    asyncio.run(_main(given.url, given.polls, given.most, given.timed))
