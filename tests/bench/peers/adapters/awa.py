"""awa: a core in Rust with Python handlers, on its queue storage."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from awa import AsyncClient

from tests.bench.peers.adapter import Adapter, Item, Kind, Settings, connections


@dataclass
class Noop:
    number: int
    x: float


@dataclass
class Sleep:
    number: int
    x: float


@dataclass
class Ping:
    number: int
    x: float


_jobs = {"noop": Noop, "sleep": Sleep, "ping": Ping}


def _address(dsn: str) -> str:
    """Its driver wants a host before the path, also when `host=` names a socket's folder."""
    return dsn.replace("@/", "@localhost/")


class Peer(Adapter):
    """Its storage is no table of jobs to count or to copy: a drain ends with the last handler, and a backlog is not made."""

    settings: ClassVar = {
        "default": {"max_workers": 10},
        "throughput": {"max_workers": 500},
        "crash": {"max_workers": 50},
    }

    async def setup(self, dsn: str) -> None:
        client = AsyncClient(_address(dsn))
        await client.migrate()
        await client.install_queue_storage()
        await client.close()

    async def open(self, dsn: str, producers: int) -> None:
        self._client = AsyncClient(_address(dsn), max_connections=2 if producers == 1 else connections)

    async def close(self) -> None:
        await self._client.close()

    async def enqueue(self, kind: Kind, number: int, x: float) -> None:
        await self._client.insert(_jobs[kind](number, x), queue="default")

    async def enqueue_many(self, kind: Kind, items: Sequence[Item]) -> None:
        await self._client.enqueue_many_copy([_jobs[kind](number, x) for number, x in items], queue="default")

    async def work(self, dsn: str, settings: Settings) -> None:
        self._client = AsyncClient(_address(dsn))
        for kind in _jobs:
            self._register(kind)
        await self._client.start([("default", settings["max_workers"])])
        await asyncio.Event().wait()

    def _register(self, kind: str) -> None:
        @self._client.task(_jobs[kind], queue="default")
        async def run(job: Any) -> None:
            await self.handle(kind, job.args.number, job.args.x)
