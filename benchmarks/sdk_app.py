"""The app that the SDK's worker runs in benches."""

import asyncio
import atexit
import json
import os
import time
from datetime import datetime
from pathlib import Path

import mainspring

app = mainspring.App("bench")
delays: list[float] = []


@app.task
async def noop(order: int = 0) -> None:
    pass


@app.task
def noop_in_thread(order: int = 0) -> None:
    pass


@app.task
async def timed(ctx: mainspring.Context, order: int = 0) -> None:
    """Notes how long after it was due it began."""
    now = time.time()
    delays.append(now - datetime.fromisoformat(ctx.details["due_at"]).timestamp())


@app.task(timeout=3600)
async def nap(order: int = 0) -> None:
    await asyncio.sleep(3600)


@atexit.register
def tell() -> None:
    if "BENCH_OUT" in os.environ:
        Path(os.environ["BENCH_OUT"]).write_text(json.dumps(delays))
