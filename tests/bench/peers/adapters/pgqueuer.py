"""pgqueuer: LISTEN, batches, an event loop. Finished jobs leave a line in a log table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

import asyncpg
from pgqueuer import AsyncpgDriver, AsyncpgPoolDriver, PgQueuer, Queries

from tests.bench.peers.adapter import Adapter, Item, Kind, Settings, connections, copies, handled


class Peer(Adapter):
    settings: ClassVar = {"default": {}, "throughput": {"batch_size": 300}}
    unfinished = "select count(*) from pgqueuer"

    async def setup(self, dsn: str) -> None:
        connection = await asyncpg.connect(dsn)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    async def open(self, dsn: str, producers: int) -> None:
        size = 1 if producers == 1 else connections
        self._pool = await asyncpg.create_pool(dsn, min_size=size, max_size=size)
        self._queries = Queries(AsyncpgPoolDriver(self._pool))

    async def close(self) -> None:
        await self._pool.close()

    async def enqueue(self, kind: Kind, number: int, x: float) -> None:
        await self._queries.enqueue(kind, json.dumps([number, x]).encode())

    async def enqueue_many(self, kind: Kind, items: Sequence[Item]) -> None:
        payloads = [json.dumps(item).encode() for item in items]
        await self._queries.enqueue([kind] * len(items), payloads, [0] * len(items))

    async def work(self, dsn: str, settings: Settings) -> None:
        queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(dsn)))
        self._queries = queue.qm.queries
        for kind in handled:
            self._register(queue, kind)
        await queue.run(**settings)

    def _register(self, queue: PgQueuer, kind: Kind) -> None:
        @queue.entrypoint(kind)
        async def run(job: Any) -> None:
            await self.handle(kind, *json.loads(job.payload))

    def finished_sql(self, count: int) -> str:
        return (
            "insert into pgqueuer_log(job_id, status, priority, entrypoint)"
            f" select g, 'successful', 0, 'noop' from generate_series(1, {count}) g"
        )

    def pending_sql(self, count: int) -> str:
        return copies("pgqueuer", count, "status = 'queued'", id="")
