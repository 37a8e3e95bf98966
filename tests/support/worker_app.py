"""The app that real worker processes run in tests. What handlers do is noted in a file."""

import asyncio
import ctypes
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import mainspring
from mainspring import Context, NonRetryable, RetryAfter

app = mainspring.App("acceptance")

if limit := os.environ.get("MEMORY_LIMIT"):
    resource.setrlimit(resource.RLIMIT_AS, (int(limit), int(limit)))


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
    time.sleep(seconds)
    return ctx.attempt


@app.task
async def block_for_ever(ctx: Context) -> None:
    """Blocks, and does not let itself be interrupted."""
    note(ctx, "begin")
    while True:
        try:
            time.sleep(60)
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
    note(ctx, "alone" if ctx.details.get("alone") else "begin")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task
async def exit_at_once(ctx: Context) -> None:
    note(ctx, "alone" if ctx.details.get("alone") else "begin")
    os._exit(1)


@app.task
def exit_in_thread(ctx: Context, seconds: float) -> None:
    note(ctx, "alone" if ctx.details.get("alone") else "begin")
    time.sleep(seconds)
    os._exit(1)


@app.task
def overrun_memory(ctx: Context) -> None:
    """Takes memory as native code does that never looks whether it got any: there it ends."""
    note(ctx, "alone" if ctx.details.get("alone") else "begin")
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    size = 16 * 2**20
    for _ in range(64):
        ctypes.memset(libc.malloc(ctypes.c_size_t(size)), 1, size)


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
    """Ends with the MemoryError that Python raises at the worker's limit. What it asks for is never
    touched, so that it is the limit which is met, and not what counts as too much in use."""
    eaten = []
    while True:
        eaten.append(bytes(16 * 2**20))


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
