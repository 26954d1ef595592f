"""oban: LISTEN, batched handlers and ends. Jobs of a dead node are taken back after `rescue_after`, 300 s as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

from oban import Oban, worker
from oban.schema import install

from tests.bench.peers.adapter import Adapter, Item, Kind, Settings, connections, copies, earlier


class _Job:
    kind: Kind

    async def process(self, job: Any) -> None:
        await Adapter.here.handle(self.kind, job.args["number"], job.args["x"])


@worker(queue="default")
class Noop(_Job):
    kind = "noop"


@worker(queue="default")
class Sleep(_Job):
    kind = "sleep"


@worker(queue="default")
class Ping(_Job):
    kind = "ping"


_workers: dict[str, Any] = {"noop": Noop, "sleep": Sleep, "ping": Ping}


class Peer(Adapter):
    settings: ClassVar = {"default": {"limit": 10}, "throughput": {"limit": 1000}, "crash": {"limit": 50}}
    jobs_max = 20_000
    unfinished = "select count(*) from oban_jobs where state not in ('completed', 'discarded', 'cancelled')"

    async def setup(self, dsn: str) -> None:
        pool = await Oban.create_pool(dsn)
        await install(pool)
        await pool.close()

    async def open(self, dsn: str, producers: int) -> None:
        size = 1 if producers == 1 else connections
        self._pool = await Oban.create_pool(dsn, min_size=size, max_size=max(size, 2))
        self._oban = Oban(pool=self._pool)
        await self._oban.start()

    async def close(self) -> None:
        await self._oban.stop()
        await self._pool.close()

    async def enqueue(self, kind: Kind, number: int, x: float) -> None:
        await self._oban.enqueue(_workers[kind].new({"number": number, "x": x}))

    async def enqueue_many(self, kind: Kind, items: Sequence[Item]) -> None:
        await self._oban.enqueue_many([_workers[kind].new({"number": number, "x": x}) for number, x in items])

    async def work(self, dsn: str, settings: Settings) -> None:
        pool = await Oban.create_pool(dsn)
        async with Oban(pool=pool, queues={"default": settings}) as self._oban:
            await asyncio.Event().wait()

    def finished_sql(self, count: int) -> str:
        return copies("oban_jobs", count, "state = 'completed'", id="")

    def pending_sql(self, count: int) -> str:
        return copies("oban_jobs", count, "state = 'available'", id="", scheduled_at=earlier("scheduled_at", count))
