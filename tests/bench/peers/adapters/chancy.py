"""chancy: with its asyncio executor (as it comes, jobs run in processes). Ends are written back once a second."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import ClassVar

from chancy import Chancy, Job, Queue, Worker

from tests.bench.peers.adapter import Adapter, Item, Kind, Settings, connections, copies, earlier


async def noop(*, number: int, x: float) -> None:
    await Adapter.here.handle("noop", number, x)


async def sleep(*, number: int, x: float) -> None:
    await Adapter.here.handle("sleep", number, x)


async def ping(*, number: int, x: float) -> None:
    await Adapter.here.handle("ping", number, x)


_functions = {"noop": noop, "sleep": sleep, "ping": ping}
_log = logging.getLogger("quiet")  # its own logger writes lines for each job
_log.setLevel(logging.WARNING)


def _job(kind: Kind, number: int, x: float) -> Job:
    return Job.from_func(_functions[kind], kwargs={"number": number, "x": x}, max_attempts=5)


class Peer(Adapter):
    settings: ClassVar = {
        "default": {},
        "throughput": {"concurrency": 1000, "eager_polling": True},
        "latency": {"concurrency": 10, "eager_polling": True},
        "crash": {"concurrency": 100},
    }
    jobs_max = 15_000
    unfinished = "select count(*) from chancy_jobs where state not in ('succeeded', 'failed')"

    async def setup(self, dsn: str) -> None:
        async with Chancy(dsn, log=_log) as chancy:
            await chancy.migrate()
            await chancy.declare(Queue("default", executor=Chancy.Executor.Async), upsert=True)

    async def open(self, dsn: str, producers: int) -> None:
        least = 1 if producers == 1 else connections
        self._chancy = Chancy(dsn, min_connection_pool_size=least, max_connection_pool_size=connections, log=_log)
        await self._chancy.__aenter__()

    async def close(self) -> None:
        await self._chancy.__aexit__(None, None, None)

    async def enqueue(self, kind: Kind, number: int, x: float) -> None:
        await self._chancy.push(_job(kind, number, x))

    async def enqueue_many(self, kind: Kind, items: Sequence[Item]) -> None:
        async for _ in self._chancy.push_many([_job(kind, number, x) for number, x in items]):
            pass

    async def work(self, dsn: str, settings: Settings) -> None:
        async with Chancy(dsn, log=_log) as self._chancy:
            queue = Queue("default", executor=Chancy.Executor.Async, **settings)
            await self._chancy.declare(queue, upsert=True)
            async with Worker(self._chancy) as worker:
                await worker.wait_for_shutdown()

    def finished_sql(self, count: int) -> str:
        return copies("chancy_jobs", count, "state = 'succeeded'", id="gen_random_uuid()")

    def pending_sql(self, count: int) -> str:
        moments = earlier("scheduled_at", count)
        return copies("chancy_jobs", count, "state = 'pending'", id="gen_random_uuid()", scheduled_at=moments)
