"""What an attempt asks of the database, counted at the wire."""

from __future__ import annotations

import json

from tests.cases.proxy import Proxy
from tests.conftest import Start
from tests.support import Program, Sql

source = """
from agentrt import agent, step

async def value(n: int) -> int:
    return n

@agent
async def stepping(count: int) -> int:
    return sum([await step(value, n) for n in range(count)])
"""


async def _cost(proxy: Proxy, sql: Sql, agent: str, count: int) -> int:
    """The statements of one job; the least of some, as a beat or a sweep may fall into any."""
    costs = []
    for _ in range(4):
        before = sum(link.statements for link in proxy.links)
        job_id = await sql.value(
            "insert into agentrt.jobs(agent, payload) values ($1, $2::json) returning id",
            agent,
            json.dumps({"count": count}),
        )
        await sql.until(job_id, "succeeded")
        costs.append(sum(link.statements for link in proxy.links) - before)
    return min(costs)


async def _worker(start: Start, proxy: Proxy) -> Program:
    program = start("run", "agents.py", "--poll", "600", source=source, environ={"AGENTRT_DATABASE_URL": proxy.dsn})
    await program.until("supervisor.started")
    return program


async def test_a_fresh_step_is_one_round_trip(start: Start, database: str, sql: Sql) -> None:
    async with Proxy(database).running() as proxy:
        await _worker(start, proxy)
        await _cost(proxy, sql, "stepping", 5)  # opens the connections, prepares the statements
        assert await _cost(proxy, sql, "stepping", 50) - await _cost(proxy, sql, "stepping", 0) == 50


async def test_a_replay_makes_no_query_for_its_steps(start: Start, database: str, sql: Sql) -> None:
    """The first attempt of the job records the steps under test by plain SQL, so that every step of it is a replay."""
    async with Proxy(database).running() as proxy:
        await _worker(start, proxy)
        await _cost(proxy, sql, "stepping", 5)
        none = await _cost(proxy, sql, "stepping", 0)
        costs = []
        for _ in range(4):
            job_id = await sql.value(
                """insert into agentrt.jobs(agent, payload, fence, run_after) values ('stepping', '{"count": 50}', 1, 'infinity')
                returning id"""
            )
            await sql.run(
                "insert into agentrt.steps(job_id, step, fence, output)"
                " select $1, 'value#' || n, 1, to_json(n) from generate_series(0, 49) n",
                job_id,
            )
            before = sum(link.statements for link in proxy.links)
            await sql.run("update agentrt.jobs set status = 'ready', run_after = now() where id = $1", job_id)
            await sql.until(job_id, "succeeded")
            costs.append(sum(link.statements for link in proxy.links) - before)
        assert min(costs) <= none + 1  # the due pass that the change of a delayed job rings
