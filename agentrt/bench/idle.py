"""What a supervisor with nothing to do takes, beside a connection that only listens.

The server's counters cannot say it: they add what autovacuum and every other client of the database do. So the supervisor,
a process of its own with default settings, counts the statements that it sends, each of which is one transaction.
"""

from __future__ import annotations

import asyncio
import time

from agentrt.bench.processes import Child, child, cpu_s, memory_mb, start_s_max
from agentrt.bench.report import Report, compared
from agentrt.bench.run import Run, stuck_s
from agentrt.store.postgres.by_hand import ByHand

_settle_s = 2.0
_settle_looks_max = 10
_tick_s = 0.5


async def idle(run: Run, *, window_s: float) -> Report:
    """Look at it before and after so many seconds, once what a start does is over."""
    known = await run.looks.backends()
    arguments = ("agentrt.bench.helpers", "count", run.schema)
    async with (
        child("The supervisor", run.url, *arguments) as supervisor,
        ByHand.opened(run.store.dsn, run.schema) as listening,
    ):
        await listening.listen(lambda: None)
        sent = await _settled(supervisor)
        cpu, changed_at, began = (
            cpu_s(supervisor.process.pid),
            await run.looks.changed_at(listening.pid),
            time.monotonic(),
        )
        while (passed_s := time.monotonic() - began) < window_s:
            run.progress("idle", int(passed_s), int(window_s))
            supervisor.require_alive()
            await asyncio.sleep(min(_tick_s, window_s - passed_s))
        passed_s = time.monotonic() - began
        sent = await _statements(supervisor) - sent
        cpu_after = cpu_s(supervisor.process.pid)
        floor = float(await run.looks.changed_at(listening.pid) != changed_at)
        connections = len(await run.looks.backends() - known - {listening.pid})
        memory = memory_mb(supervisor.process.pid)
    rate, floor_rate = round(sent / passed_s, 3), round(floor / passed_s, 3)
    percent = None if cpu is None or cpu_after is None else round((cpu_after - cpu) / passed_s * 100, 2)
    return Report(
        f"a supervisor with nothing to do, {passed_s:.0f} s",
        {
            "seconds": round(passed_s, 1),
            "transactions_per_s": rate,
            "floor_transactions_per_s": floor_rate,
            "connections": connections,
            "floor_connections": 1,
            "cpu_percent": percent,
            "memory_mb": memory,
        },
        [
            compared("transactions a second", rate, floor_rate),
            compared("connections", connections, 1),
            compared("percent of a core", percent),
            compared("memory, MB", memory),
        ],
        columns=("", "agentrt", "a LISTEN by hand", "ratio"),
    )


async def _settled(supervisor: Child) -> int:
    """Wait until what a start does is over: two looks that find the same. Returns the statements so far."""
    await supervisor.line(start_s_max)
    sent = -1
    for _ in range(_settle_looks_max):
        now = await _statements(supervisor)
        if now == sent:
            break
        sent = now
        await asyncio.sleep(_settle_s)
    return sent


async def _statements(supervisor: Child) -> int:
    supervisor.tell(b"?")
    return int(await supervisor.line(stuck_s))
