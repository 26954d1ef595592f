"""saq on its PostgreSQL queue: LISTEN; a job whose worker died is swept after its timeout, and as it comes not tried again."""

from __future__ import annotations

from typing import Any, ClassVar

from saq import Queue, Worker

from tests.bench.peers.adapter import Adapter, Kind, Settings, connections, copies, handled


class Peer(Adapter):
    settings: ClassVar = {
        "default": {},
        "throughput": {"concurrency": 50, "pool": 40},
        "crash": {"concurrency": 50},
    }
    bulk = False
    jobs_max = 4_000
    unfinished = "select count(*) from saq_jobs where status in ('new', 'queued', 'active')"

    async def setup(self, dsn: str) -> None:
        await self.open(dsn, 1)
        await self.close()

    async def open(self, dsn: str, producers: int) -> None:
        size = 2 if producers == 1 else connections
        self._queue = Queue.from_url(dsn, min_size=size, max_size=size)
        await self._queue.connect()

    async def close(self) -> None:
        await self._queue.disconnect()

    async def enqueue(self, kind: Kind, number: int, x: float) -> None:
        await self._queue.enqueue(kind, number=number, x=x)

    async def work(self, dsn: str, settings: Settings) -> None:
        self._queue = Queue.from_url(dsn, min_size=4, max_size=settings.pop("pool", 20))
        await self._queue.connect()
        await Worker(self._queue, functions=[self._function(kind) for kind in handled], **settings).start()

    def _function(self, kind: Kind) -> Any:
        async def run(context: Any, *, number: int, x: float) -> None:
            await self.handle(kind, number, x)

        return kind, run

    def finished_sql(self, count: int) -> str:
        return copies("saq_jobs", count, "status = 'complete'", key="gen_random_uuid()::text")

    def pending_sql(self, count: int) -> str:
        # The key is part of the stored job, too.
        return (
            "insert into saq_jobs(key, job, queue, status, priority, group_key, scheduled)"
            " select 'k' || g, convert_to(replace(convert_from(s.job, 'UTF8'), s.key, 'k' || g), 'UTF8'),"
            f" s.queue, s.status, s.priority, s.group_key, s.scheduled - ({count} - g) / 1000"
            f" from (select * from saq_jobs where status = 'queued' limit 1) s, generate_series(1, {count}) g"
        )
