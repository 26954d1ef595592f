"""The queue of many blog posts: `for update skip locked limit 1`, a job at a time, and 500 ms of sleep when there is none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import ClassVar

import asyncpg

from tests.bench.peers.adapter import Adapter, Item, Kind, Settings, connections, copies

_tables = """
create table jobs(id bigserial primary key, kind text not null, payload jsonb not null, status text not null default 'pending',
                  created_at timestamptz not null default now(), done_at timestamptz);
create index on jobs(id) where status = 'pending';
"""
_insert = "insert into jobs(kind, payload) values ($1, $2)"
_claim = "select id, kind, payload from jobs where status = 'pending' order by id for no key update skip locked limit 1"


class Peer(Adapter):
    """The job runs inside the transaction that claimed it."""

    settings: ClassVar = {"default": {"poll_s": 0.5}}
    unfinished = "select count(*) from jobs where status = 'pending'"

    async def setup(self, dsn: str) -> None:
        connection = await asyncpg.connect(dsn)
        await connection.execute(_tables)
        await connection.close()

    async def open(self, dsn: str, producers: int) -> None:
        size = 1 if producers == 1 else connections
        self._pool = await asyncpg.create_pool(dsn, min_size=size, max_size=size)

    async def close(self) -> None:
        await self._pool.close()

    async def enqueue(self, kind: Kind, number: int, x: float) -> None:
        await self._pool.execute(_insert, kind, json.dumps([number, x]))

    async def enqueue_many(self, kind: Kind, items: Sequence[Item]) -> None:
        await self._pool.executemany(_insert, [(kind, json.dumps(item)) for item in items])

    async def work(self, dsn: str, settings: Settings) -> None:
        await self.open(dsn, 1)
        connection = await asyncpg.connect(dsn)
        while True:
            async with connection.transaction():
                row = await connection.fetchrow(_claim)
                if row is not None:
                    await self.handle(row["kind"], *json.loads(row["payload"]))
                    await connection.execute(
                        "update jobs set status = 'done', done_at = now() where id = $1", row["id"]
                    )
            if row is None:
                await asyncio.sleep(settings["poll_s"])

    def finished_sql(self, count: int) -> str:
        return copies("jobs", count, "status = 'done'", id="")

    def pending_sql(self, count: int) -> str:
        return copies("jobs", count, "status = 'pending'", id="")
