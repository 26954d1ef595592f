"""What a fresh step costs, one after the other in one job, beside a fenced insert by hand. Blocks of both alternate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass

from agentrt.bench.agents import stepping
from agentrt.bench.wake import bench_schema
from agentrt.client import connect
from agentrt.config import Settings
from agentrt.engine.supervisor import Supervisor
from agentrt.store.opening import open_store
from agentrt.store.postgres import PostgresStore, by_hand

block = 100


@dataclass(frozen=True, slots=True)
class StepsReport:
    """Milliseconds a step that does nothing, and a fenced insert by hand; the statements that a step took."""

    steps: int
    ms_per_step: float
    floor_ms: float
    round_trips_per_step: float

    @property
    def ratio(self) -> float:
        return self.ms_per_step / self.floor_ms

    def as_dict(self) -> dict[str, float]:
        return {**asdict(self), "ratio": round(self.ratio, 3)}


async def steps(url: str, count: int, progress: Callable[[int], None]) -> StepsReport:
    """Measure, in whole blocks. Uses schemas of its own, which are gone afterwards."""
    store = await open_store(url, bench_schema)
    try:
        await store.drop_schema()
        await store.migrate()
        writer = await by_hand.StepWriter.open(store.dsn)
        try:
            async with _supervising(store), connect(store.dsn, schema=bench_schema):
                return await _alternate(store, writer, count, progress)
        finally:
            await writer.close()
    finally:
        await store.drop_schema()
        await store.close()


async def _alternate(
    store: PostgresStore, writer: by_hand.StepWriter, count: int, progress: Callable[[int], None]
) -> StepsReport:
    loop = asyncio.get_running_loop()
    ours = floor = 0.0
    await stepping.ask(10)  # opens the connections, prepares the statements
    statements = 0
    done = 0
    while done < count:
        before = store.statements
        ours += await stepping.ask(block)
        statements += store.statements - before - _around
        began = loop.time()
        for number in range(block):
            await writer.write(str(number))
        floor += loop.time() - began
        done += block
        progress(done)
    return StepsReport(done, round(ours / done * 1000, 4), round(floor / done * 1000, 4), round(statements / done, 3))


_around = 2  # the claim of the job and its end


@asynccontextmanager
async def _supervising(store: PostgresStore) -> AsyncIterator[None]:
    """A supervisor in this process, so that its statements can be counted."""
    supervisor = Supervisor({stepping.name: stepping}, store, Settings())
    ready = asyncio.Event()
    supervisor.on_ready = ready.set
    async with asyncio.TaskGroup() as group:
        group.create_task(supervisor.run())
        await ready.wait()
        try:
            yield
        finally:
            supervisor.drain()
