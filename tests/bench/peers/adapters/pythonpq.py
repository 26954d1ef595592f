"""python-pq: synchronous, a forked child for each job, at most once."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, cast
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from loguru import logger
from pq import PQ

from tests.bench.peers.adapter import Adapter, Kind, Settings, copies, earlier


def noop(number: int, x: float) -> None:
    Adapter.here.probe.start(number)
    Adapter.here.probe.end(number)


def sleep(number: int, x: float) -> None:
    Adapter.here.probe.start(number)
    time.sleep(x)
    Adapter.here.probe.end(number)


def ping(number: int, x: float) -> None:
    Adapter.here.probe.start(number)
    if number % x:
        cast("Peer", Adapter.here).put("ping", number + 1, x)
    Adapter.here.probe.end(number)


_functions = {"noop": noop, "sleep": sleep, "ping": ping}


class Peer(Adapter):
    """Producers are threads."""

    settings: ClassVar = {
        "default": {},
        "throughput": {"concurrency": 10, "poll_interval": 0.01},
        "latency": {"poll_interval": 0.01},
        "crash": {"concurrency": 50},
    }
    bulk = False
    jobs_max = 1_000
    unfinished = "select count(*) from pq_tasks where status in ('PENDING', 'RUNNING')"

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(work)

    def _connect(self, dsn: str) -> None:
        """Its migrations cannot read the quoted path of a socket's folder, so that goes to the driver by the environment."""
        parts = urlsplit(dsn)
        os.environ.update({f"PG{name.upper()}": value for name, value in parse_qsl(parts.query)})
        self._queue = PQ(urlunsplit(("postgresql+psycopg2", parts.netloc, parts.path, "", "")))

    async def setup(self, dsn: str) -> None:
        self._connect(dsn)
        self._queue.run_db_migrations()

    async def open(self, dsn: str, producers: int) -> None:
        self._connect(dsn)
        self._threads = ThreadPoolExecutor(producers) if producers > 1 else None

    def put(self, kind: Kind, number: int, x: float) -> None:
        self._queue.enqueue(_functions[kind], number=number, x=x)

    async def enqueue(self, kind: Kind, number: int, x: float) -> None:
        if self._threads is None:
            self.put(kind, number, x)
        else:
            await asyncio.get_running_loop().run_in_executor(self._threads, self.put, kind, number, x)

    async def work(self, dsn: str, settings: Settings) -> None:
        logger.remove()  # lines for each job
        self._connect(dsn)
        self._queue.run_worker(**settings)

    def finished_sql(self, count: int) -> str:
        return copies("pq_tasks", count, "status = 'COMPLETED'", id="")

    def pending_sql(self, count: int) -> str:
        return copies("pq_tasks", count, "status = 'PENDING'", id="", run_at=earlier("run_at", count))
