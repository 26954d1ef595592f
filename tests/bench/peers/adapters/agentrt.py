"""agentrt, through its public names; its worker is `agentrt run`, as users start it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import ClassVar

import agentrt
from tests.bench.peers.adapter import Adapter, Item, Kind, Settings, copies
from tests.bench.peers.adapters.agentrt_agents import agents, probe_variable, worker_variable


class Peer(Adapter):
    """`default` is `agentrt run MODULE` and nothing else: log level info, which writes lines for each job, and 100 slots."""

    settings: ClassVar = {
        "default": {},
        "throughput": {"--log-level": "warning", "--slots": "500"},
        "latency": {"--log-level": "warning"},
    }
    steps = True
    unfinished = "select count(*) from agentrt.all_jobs where state not in ('succeeded', 'failed', 'cancelled')"

    async def setup(self, dsn: str) -> None:
        async with agentrt.connect(dsn):  # an empty database gets its tables
            pass

    async def open(self, dsn: str, producers: int) -> None:
        self._open = AsyncExitStack()
        await self._open.enter_async_context(agentrt.connect(dsn))

    async def close(self) -> None:
        await self._open.aclose()

    async def enqueue(self, kind: Kind, number: int, x: float) -> None:
        await agents[kind].send(number, x)

    async def enqueue_many(self, kind: Kind, items: Sequence[Item]) -> None:
        await agentrt.send_many([agents[kind].message(number, x) for number, x in items])

    async def work(self, dsn: str, settings: Settings) -> None:
        os.environ[probe_variable] = str(self.probe.path)
        os.environ[worker_variable] = str(self.probe.worker)
        options = [word for option in settings.items() for word in option]
        module = "tests.bench.peers.adapters.agentrt_agents"
        os.execv(sys.executable, [sys.executable, "-m", "agentrt", "run", module, "--database", dsn, *options])

    def finished_sql(self, count: int) -> str:
        return copies("agentrt.history", count, "state = 'succeeded'", id="-g")

    def pending_sql(self, count: int) -> str:
        payload = '{"number": 0, "x": 0}'
        return f"insert into agentrt.jobs(agent, payload) select 'noop', '{payload}' from generate_series(1, {count})"
