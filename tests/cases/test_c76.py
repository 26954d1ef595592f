"""C76, ordering: a job of low priority never gets a turn, and the reason that is shown for its waiting is wrong."""

from __future__ import annotations

import asyncio

import pytest

import agentrt
from agentrt import agent
from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli
from tests.conftest import supervising
from tests.support import Sql

pytestmark = pytest.mark.case


async def test_a_job_of_low_priority_waits_as_long_as_better_ones_are_ready_and_why_says_so(
    database: str, client: agentrt.Client, sql: Sql, cli: Cli
) -> None:
    """Two slots, and a hundred better jobs are ready at any time."""
    order: list[int] = []
    asked = asyncio.Event()

    @agent
    async def served(priority: int) -> None:
        order.append(priority)
        await asyncio.sleep(0.02)

    async with supervising(database, served, slots=2, poll_s=600) as supervisor:
        better = served.options(priority=1).message(1)
        await agentrt.send_many([better] * 100)
        low = await served.options(priority=8).send(8)

        async def feed() -> None:
            while order.count(1) < 200 or not asked.is_set():
                ready = await sql.value("select count(*) from agentrt.jobs where status = 'ready' and priority = 1")
                await agentrt.send_many([better] * (100 - ready))

        async def ask() -> list[str]:
            out = [(await cli("why", low.id)).out for _ in range(3)]
            asked.set()
            return out

        _, lines = await asyncio.gather(feed(), ask())
        assert await sql.state(low.id) == "ready"
        for line in lines:
            assert line.startswith(f"job {low.id} is ready: ")
            assert "jobs are ahead of it in the queue of its agent" in line
        await low.result(timeout_s=30)
        assert supervisor.stats.claimed["poll"] == 0
    assert order[-1] == 8
    assert order.count(8) == 1


async def test_why_counts_the_better_and_the_older_jobs_of_its_agent_alone(
    client: agentrt.Client, sql: Sql, cli: Cli
) -> None:
    await sql.run(
        "insert into agentrt.supervisors(id, host, pid, agents, slots) values (gen_random_uuid(), 'box', 7, '{a,b}', 1)"
    )
    to, other = agentrt.to("a"), agentrt.to("b")
    older = [to.options(priority=5).message() for _ in range(3)]
    await agentrt.send_many([*older, *(other.options(priority=0).message() for _ in range(4))])
    job = await to.options(priority=5).send()
    await agentrt.send_many([to.options(priority=p).message() for p in (0, 4, 5, 6)])
    assert "5 jobs are ahead of it in the queue of its agent" in (await cli("why", job.id)).out
