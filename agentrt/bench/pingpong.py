"""Two agents that send each other a message: what one hop costs, beside a commit a hop by hand."""

from __future__ import annotations

import asyncio
from functools import partial

from agentrt.agent import agent
from agentrt.bench.report import Report, compared, per_second, ratio
from agentrt.bench.run import MeasurementFailed, Run, stuck_s
from agentrt.limits import hops_max
from agentrt.testing.inside import supervising_on

_ends: dict[int, asyncio.Event] = {}  # of the rallies that are under way, in this process


@agent
async def ping(rally: int, left: int) -> None:
    """Handle a message; send the next, or end the rally."""
    if left:
        await pong.send(rally, left - 1)
    else:
        _ends[rally].set()


@agent
async def pong(rally: int, left: int) -> None:
    """As `ping`, towards the other side."""
    if left:
        await ping.send(rally, left - 1)
    else:
        _ends[rally].set()


async def pingpong(run: Run, *, hops: int) -> Report:
    """So many messages, one at a time, in rallies of as many as may follow from one message."""
    async with supervising_on(run.store, ping, pong), run.client():
        await _rally(10)  # opens the connections, prepares the statements
        ours_s, floor_s = await run.alternate("hops", hops, hops_max, _rally, partial(_rally_by_hand, run))
    rate, floor_rate = per_second(hops, ours_s), per_second(hops, floor_s)
    return Report(
        f"{hops:,} messages between two agents, each sent by the job of the one before",
        {"hops": hops, "hops_per_s": rate, "floor_hops_per_s": floor_rate, "ratio": ratio(rate, floor_rate)},
        [compared("hops a second", rate, floor_rate)],
    )


async def _rally(hops: int) -> None:
    rally = len(_ends)
    _ends[rally] = asyncio.Event()
    await ping.send(rally, hops - 1)
    try:
        async with asyncio.timeout(stuck_s):
            await _ends[rally].wait()
    except TimeoutError:
        raise MeasurementFailed(f"A rally of {hops} messages did not end within {stuck_s:g} s.") from None


async def _rally_by_hand(run: Run, hops: int) -> None:
    """Each message is handled and the next one sent in one commit; the last one is handled."""
    job_id = await run.by_hand.insert('{"left": 0}')
    for left in range(hops - 1, 0, -1):
        job_id = await run.by_hand.hop(job_id, f'{{"left": {left}}}')
    await run.by_hand.complete([job_id])
