"""Agents that write what they do to a ledger file, over a link of their own, so runs are counted without trusting the runtime."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from typing import Any

import agentrt
from agentrt import Retry, agent

ledger = os.environ["LEDGER"]
quick = Retry(max_attempts=3, base_s=0.1, factor=1)


def note(kind: str, **more: Any) -> None:
    """Append one line; a single write of a short line to a file opened for appending is not torn by others."""
    now = agentrt.current()
    line = {
        "kind": kind,
        "job": now.job_id,
        "agent": now.agent,
        "attempt": now.attempt,
        "pid": os.getpid(),
        "at": time.time(),
        **more,
    }
    with open(ledger, "a") as file:
        file.write(json.dumps(line) + "\n")


@agent(retry=quick)
async def instant(n: int = 0) -> int:
    note("start", n=n)
    return n


@agent(retry=quick)
async def nap(seconds: float) -> str:
    """Awaits."""
    note("start")
    await asyncio.sleep(seconds)
    note("end")
    return "rested"


@agent(retry=quick)
async def block(seconds: float) -> str:
    """Blocks the event loop."""
    note("start")
    time.sleep(seconds)  # noqa: ASYNC251 - the fault under test
    note("end")
    return "blocked"


@agent(retry=quick)
def thread(seconds: float) -> str:
    """A plain function: runs in a thread."""
    note("start")
    time.sleep(seconds)
    note("end")
    return "threaded"


@agent(retry=quick)
async def tick(seconds: float) -> str:
    """Ticks to the ledger every 20 ms."""
    note("start")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        note("tick")
        await asyncio.sleep(0.02)
    note("end")
    return "ticked"


@agent(retry=quick)
async def suicide() -> None:
    note("start")
    os.kill(os.getpid(), signal.SIGKILL)
