"""What a supervisor takes: memory over many jobs, connections and transactions while it is idle."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import psutil
import pytest

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
    start: Start, sql: Sql, server: str, database: str
) -> None:
    import asyncpg

    name = urlsplit(database).path[1:]
    outside = await asyncpg.connect(server)  # so that the looking is not counted
    try:
        await sql.connection.close()
        program = start("run", "agents.py", source=noop)
        await program.until("supervisor.started")
        others = "select count(*) from pg_stat_activity where datname = $1"

        async def settled() -> bool:
            return bool(await outside.fetchval(others, name) <= 3)

        await eventually(settled, what="at most three connections")
        count = "select xact_commit + xact_rollback from pg_stat_database where datname = $1"
        await outside.execute("select pg_stat_clear_snapshot()")
        before = await outside.fetchval(count, name)
        await asyncio.sleep(idle_window_s)  # the measured window: a rate has no event to wait for
        after = await outside.fetchval(count, name)
        assert after - before <= 0.2 * idle_window_s + 25  # and a visit of autovacuum, which counts one for each table
        assert await outside.fetchval(others, name) <= 3
    finally:
        await outside.close()
