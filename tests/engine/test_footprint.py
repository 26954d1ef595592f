"""What a supervisor takes while it is idle: connections and transactions."""

from __future__ import annotations

import asyncio

from tests.cases.proxy import Proxy
from tests.conftest import Start
from tests.support import eventually

noop = """
from agentrt import agent

@agent
async def noop(n: int) -> int:
    return n
"""
idle_window_s = 20.0


async def test_an_idle_supervisor_holds_three_connections_and_makes_a_statement_every_few_seconds(
    start: Start, database: str
) -> None:
    async with Proxy(database).running() as proxy:  # at the wire: the server's own counters hold autovacuum's work, too
        program = start("run", "agents.py", source=noop, environ={"AGENTRT_DATABASE_URL": proxy.dsn})
        await program.until("supervisor.started")

        async def settled() -> bool:
            seen = sum(link.statements for link in proxy.links)
            await asyncio.sleep(2)  # between two looks: what begins is over when nothing came in between
            return seen == sum(link.statements for link in proxy.links)

        await eventually(settled, what="the end of what a supervisor begins with")
        before = sum(link.statements for link in proxy.links)
        await asyncio.sleep(idle_window_s)  # the measured window: a rate has no event to wait for
        after = sum(link.statements for link in proxy.links)
        assert 1 <= after - before <= 0.2 * idle_window_s  # some: the count sees the beat
        assert sum(link.open for link in proxy.links) <= 3
