"""How long from enqueue to running coroutine on an idle system, beside the same path by hand.

Both receivers are processes of their own and live through the whole run; blocks of sends alternate between them, so that
what the machine does meanwhile hits both alike.
"""

from __future__ import annotations

import asyncio
import random
import time

from agentrt.bench.agents import noted
from agentrt.bench.processes import Child, child, start_s_max, workers
from agentrt.bench.report import Report, compared, milliseconds, ratio
from agentrt.bench.run import Run, stuck_s

block = 50
warm_up = 10
gap_s = (0.005, 0.03)


async def wake(run: Run, *, samples: int) -> Report:
    """Milliseconds from just before the send to the first line of the coroutine (floor: to the claim's answer)."""
    await run.by_hand.hang_bell()
    arguments = ("agentrt.bench.helpers", "receive", run.schema)
    async with workers(run), child("The receiver by hand", run.store.dsn, *arguments) as receiver, run.client():
        await receiver.line(start_s_max)  # it listens
        ours, floor = await _alternate(run, receiver, samples)
    p50, p99, floor_p50, floor_p99 = (milliseconds(some, at) for some in (ours, floor) for at in (50, 99))
    return Report(
        f"wake-up, {samples} single sends",
        {
            "samples": samples,
            "p50_ms": p50,
            "p99_ms": p99,
            "floor_p50_ms": floor_p50,
            "floor_p99_ms": floor_p99,
            "ratio": ratio(p50, floor_p50),
        },
        [compared("p50 ms", p50, floor_p50), compared("p99 ms", p99, floor_p99)],
    )


async def _alternate(run: Run, receiver: Child, samples: int) -> tuple[list[float], list[float]]:
    """Blocks of sends, one at a time, each awaited before the next. The first few of each kind are not counted."""
    ours: list[float] = []
    floor: list[float] = []
    while len(ours) < samples + warm_up:
        for _ in range(min(block, samples + warm_up - len(ours))):
            await _pause()
            ours.append(await noted.options(timeout_s=stuck_s).ask(time.monotonic()))
        for _ in range(len(ours) - len(floor)):
            await _pause()
            await run.by_hand.ring()
            floor.append(float(await receiver.line(stuck_s)))
        run.progress("single sends", len(ours) - warm_up, samples)
    return ours[warm_up:], floor[warm_up:]


async def _pause() -> None:
    await asyncio.sleep(random.uniform(*gap_s))  # noqa: S311 - spreads the sends over the receivers' timers
