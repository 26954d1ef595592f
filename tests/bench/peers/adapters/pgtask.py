"""pgtask: a core in Rust with Python handlers, LISTEN, durable steps, leases of 30 s."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pgtask import Client, EnqueueRequest, TaskRegistry, Worker

from tests.bench.peers.adapter import Adapter, Item, Kind, Settings, connections, copies, earlier, handled


def _request(kind: Kind, number: int, x: float) -> EnqueueRequest:
    return EnqueueRequest(kind, {"number": number, "x": x}, queue_name="q")


def _address(dsn: str) -> str:
    """Its driver wants a host before the path, also when `host=` names a socket's folder."""
    return dsn.replace("@/", "@localhost/")


class Peer(Adapter):
    settings: ClassVar = {
        "default": {},
        "throughput": {"concurrency": 500, "max_query_connections": 20},
        "crash": {"concurrency": 50},
    }
    steps = True
    jobs_max = 15_000
    unfinished = "select count(*) from pgtask.tasks where state in ('pending', 'running', 'waiting')"

    async def setup(self, dsn: str) -> None:
        client = await Client.connect(_address(dsn))
        await client.migrate()

    async def open(self, dsn: str, producers: int) -> None:
        size = 2 if producers == 1 else connections
        self._client = await Client.connect(_address(dsn), max_query_connections=size)

    async def enqueue(self, kind: Kind, number: int, x: float) -> None:
        await self._client.enqueue(_request(kind, number, x))

    async def enqueue_many(self, kind: Kind, items: Sequence[Item]) -> None:
        await self._client.enqueue_many([_request(kind, number, x) for number, x in items])

    async def work(self, dsn: str, settings: Settings) -> None:
        await self.open(dsn, 1)
        registry = TaskRegistry(queue_name="q")
        for kind in handled:
            self._register(registry, kind)

        @registry.task("steps")
        async def steps(task: Any, payload: Any) -> None:
            number, count = payload["number"], payload["x"]
            for slot in range(number * count, (number + 1) * count):
                await task.step(f"one-{slot}", lambda slot=slot: self.step(slot))

        await Worker(_address(dsn), registry, **settings).run()

    def _register(self, registry: TaskRegistry, kind: Kind) -> None:
        @registry.task(kind)
        async def run(task: Any, payload: Any) -> None:
            await self.handle(kind, payload["number"], payload["x"])

    def finished_sql(self, count: int) -> str:
        return copies("pgtask.tasks", count, "state = 'succeeded'", id="gen_random_uuid()")

    def pending_sql(self, count: int) -> str:
        moments = {column: earlier(column, count) for column in ("run_at", "created_at")}
        return copies("pgtask.tasks", count, "state = 'pending'", id="gen_random_uuid()", **moments)
