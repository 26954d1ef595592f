"""What a supervisor takes: memory over many jobs, connections and transactions while it is idle."""

from __future__ import annotations

import asyncio

import psutil
import pytest

from tests.cases.proxy import Proxy
from tests.conftest import Start
from tests.support import Sql, eventually

noop = """
from agentrt import agent

@agent
async def noop(n: int) -> int:
    return n
"""
fill = """insert into agentrt.jobs(agent, payload) select 'noop', json_build_object('n', n) from generate_series(1, $1::int) n"""
mebibyte = 1024 * 1024
idle_window_s = 20.0


@pytest.mark.timeout(480)
async def test_memory_stays_flat_over_fifty_thousand_jobs(start: Start, sql: Sql) -> None:
    program = start("run", "agents.py", "--log-level", "warning", "--poll", "600", source=noop)
    process = psutil.Process(program.pid)
    await sql.run(fill, 10_000)
    await sql.until_none_unfinished(within_s=90)
    warm = process.memory_info().rss
    for _ in range(4):
        await sql.run(fill, 10_000)
        await sql.until_none_unfinished(within_s=90)
    assert await sql.value("select count(*) from agentrt.history where state = 'succeeded'") == 50_000
    assert process.memory_info().rss - warm < 10 * mebibyte


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
