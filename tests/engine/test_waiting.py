"""Jobs that wait, and the life of the supervisor that has them in memory."""

from __future__ import annotations

import agentrt
from tests.conftest import Start
from tests.support import Sql

source = """
import asyncio
import agentrt
from agentrt import agent, step

@agent
async def asker(n: int) -> int:
    return n + await agentrt.to("answerer").ask(n=n)

@agent
async def branching() -> int:
    first, second = await asyncio.gather(agentrt.to("answerer").ask(n=1), step(slow))
    return first + second

async def slow() -> int:
    await asyncio.sleep(1)
    return 10
"""
answering = """
from agentrt import agent

@agent
async def answerer(n: int) -> int:
    return n
"""


async def test_a_supervisor_that_is_told_to_stop_parks_what_only_waits_and_ends_at_once(
    start: Start, client: agentrt.Client, sql: Sql
) -> None:
    program = start("run", "agents.py", "--drain", "600", source=source)
    jobs = [await agentrt.to("asker").send(n=n) for n in range(20)]
    for job in jobs:
        await program.until("job.claimed", job_id=job.id)
    await sql.until_count("select count(*) from agentrt.steps where not done", 20)

    assert await program.stop() == 0  # long before the drain's end

    assert {(await sql.job(job.id))["state"] for job in jobs} == {"parked"}
    assert await sql.value("select count(*) from agentrt.attempts") == 0
    start("run", "agents.py", source=source + answering, name="next")
    assert [await job.result(timeout_s=30) for job in jobs] == [2 * n for n in range(20)]
    assert {(await sql.job(job.id))["attempt_count"] for job in jobs} == {1}


async def test_a_step_that_runs_beside_a_wait_ends_before_its_job_is_parked(
    start: Start, client: agentrt.Client, sql: Sql
) -> None:
    program = start("run", "agents.py", "--drain", "600", source=source)
    job = await agentrt.to("branching").send()
    await sql.until_count("select count(*) from agentrt.steps where not done", 1)

    assert await program.stop() == 0

    assert await sql.rows("select output::text from agentrt.steps where done") == [{"output": "10"}]
    assert (await sql.job(job.id))["state"] == "parked"
