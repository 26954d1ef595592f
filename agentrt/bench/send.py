"""How fast messages are stored: one after the other, from many tasks, and in bulk, beside inserts by hand."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

from agentrt.agent import send_many
from agentrt.bench.agents import noop
from agentrt.bench.report import Figure, Report, compared, per_second, ratio
from agentrt.bench.run import Run, Timed

tasks = 50
bulk_size = 1_000


@dataclass(frozen=True, slots=True)
class _Way:
    """A way of sending, and the same by hand; blocks of both alternate."""

    name: str
    what: str
    total: int
    block: int
    ours: Timed
    floor: Timed


async def send(run: Run, *, one_by_one: int, concurrent: int, bulk: int) -> Report:
    """So many messages in each of the three ways. Nobody runs them."""
    ways = (
        _Way("one_by_one", "one by one", one_by_one, 100, _one_by_one, partial(_insert_grouped, run, 1)),
        _Way("concurrent", f"from {tasks} tasks", concurrent, 1_000, _from_tasks, partial(_insert_grouped, run, tasks)),
        _Way("bulk", f"{bulk_size:,} at a time", bulk, 2_000, _in_bulk, partial(_insert_grouped, run, bulk_size)),
    )
    figures: dict[str, Figure] = {}
    rows = []
    async with run.client():
        await _one_by_one(1)  # opens the connection, prepares the statement
        for way in ways:
            ours_s, floor_s = await run.alternate(way.what, way.total, way.block, way.ours, way.floor)
            rate, floor_rate = per_second(way.total, ours_s), per_second(way.total, floor_s)
            figures |= {
                f"{way.name}_messages": way.total,
                f"{way.name}_per_s": rate,
                f"floor_{way.name}_per_s": floor_rate,
                f"{way.name}_ratio": ratio(rate, floor_rate),
            }
            rows.append(compared(f"messages a second, {way.what}", rate, floor_rate))
    return Report(
        "sending", figures, rows, remarks=("By hand: one insert a group, as large as what is sent at a time.",)
    )


async def _one_by_one(count: int) -> None:
    for number in range(count):
        await noop.send(number)


async def _from_tasks(count: int) -> None:
    async with asyncio.TaskGroup() as group:
        for first in range(tasks):
            group.create_task(_one_by_one(len(range(first, count, tasks))))


async def _in_bulk(count: int) -> None:
    for start in range(0, count, bulk_size):
        await send_many([noop.message(number) for number in range(start, min(start + bulk_size, count))])


async def _insert_grouped(run: Run, size: int, count: int) -> None:
    """Statements of `size` messages each, one after the other on one connection."""
    for start in range(0, count, size):
        payloads = [f'{{"n": {number}}}' for number in range(start, min(start + size, count))]
        if size == 1:
            await run.by_hand.insert(payloads[0])
        else:
            await run.by_hand.insert_many(payloads)
