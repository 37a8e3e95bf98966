"""The app that real worker processes run in tests. What handlers do is noted in a file."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import mainspring
from mainspring import Context, NonRetryable, RetryAfter

app = mainspring.App("acceptance")


def note(ctx: Context, word: str) -> None:
    """One line, written at once, so that it survives whatever comes next."""
    line = f"{time.time():.3f} {word} {ctx.task_id} {ctx.attempt} {os.getpid()}\n"
    with Path(os.environ["EVIDENCE"]).open("a") as file:
        file.write(line)


@app.task
async def add(a: int, b: int) -> int:
    return a + b


@app.task
async def nap(ctx: Context, seconds: float) -> int:
    note(ctx, "begin")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note(ctx, "cancelled")
        raise
    note(ctx, "end")
    return ctx.attempt


@app.task
def nap_in_thread(ctx: Context, seconds: float) -> int:
    note(ctx, "begin")
    cancelled = ctx.wait(seconds)
    note(ctx, "cancelled" if cancelled else "end")
    return ctx.attempt


@app.task
async def block_the_loop(ctx: Context, seconds: float) -> int:
    note(ctx, "begin")
    time.sleep(seconds)  # noqa: ASYNC251 - the very mistake that is tried
    return ctx.attempt


@app.task
async def block_for_ever(ctx: Context) -> None:
    """Blocks, and does not let itself be interrupted."""
    note(ctx, "begin")
    while True:
        try:
            time.sleep(60)  # noqa: ASYNC251
        except BaseException:
            continue


@app.task
def sleep_hard(seconds: float) -> None:
    time.sleep(seconds)


@app.task
def spin() -> None:
    while True:
        pass


@app.task
async def swallow(ctx: Context) -> None:
    """Does not end when it is cancelled."""
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            note(ctx, "ignored")


@app.task
async def kill_the_worker(ctx: Context) -> None:
    note(ctx, "begin")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(cpu_bound=True)
def compute(ctx: Context, n: int) -> int:
    note(ctx, "begin")
    ctx.log(f"computing {n}")
    ctx.progress(0.5)
    return sum(i * i for i in range(n))


@app.task(cpu_bound=True)
def compute_for_ever(ctx: Context) -> None:
    note(ctx, "begin")
    while True:
        pass


@app.task(cpu_bound=True)
def devour(ctx: Context) -> None:
    note(ctx, "begin")
    eaten = []
    while True:
        eaten.append(bytearray(8 * 2**20))
        time.sleep(0.02)


@app.task
async def devour_in_the_worker() -> None:
    raise MemoryError("there is no more")


@app.task
async def talk(ctx: Context, lines: int) -> None:
    for number in range(lines):
        ctx.log(f"line {number}")


@app.task
async def fail(how: str) -> Any:
    match how:
        case "final":
            raise NonRetryable("it is no use")
        case "later":
            raise RetryAfter(1.0)
        case _:
            raise ValueError("not this time")


@app.task
async def once(ctx: Context) -> bool:
    first = await ctx.aonce("effect")
    if ctx.attempt == 1:
        raise ValueError("after the effect")
    return first
