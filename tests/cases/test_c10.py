"""C10, claim: a uniqueness key races on insert, or stands in the way when the older job of it must be recovered."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

import agentrt
from agentrt import agent
from tests.conftest import Start, supervising
from tests.support import Sql

pytestmark = pytest.mark.case

source = """
import asyncio, agentrt
from agentrt import Retry, agent

@agent(retry=Retry(max_attempts=3, base_s=0.1))
async def work(n: int) -> int:
    if n == 1 and agentrt.current().attempt == 1:
        await asyncio.sleep(600)
    return n
"""
work = agentrt.to("work")


async def test_of_many_sends_at_once_with_one_dedup_one_makes_the_job_and_the_rest_get_its_id(
    database: str, sql: Sql
) -> None:
    runs: list[int] = []

    @agent
    async def once(n: int) -> int:
        runs.append(n)
        return n

    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(agentrt.connect(database)) for _ in range(5)]
        jobs = await asyncio.gather(
            *(
                once.options(dedup="invoice-7", key=key, client=clients[n % 5]).send(n)
                for n, key in enumerate([None, "alice"] * 10)
            )
        )
        assert len({job.id for job in jobs}) == 1
        async with supervising(database, once, poll_s=600):
            results = {await job.result(timeout_s=30) for job in jobs}
            assert results == set(runs)
            assert len(runs) == 1
            again = await once.options(dedup="invoice-7").send(99)  # also after its end
            assert again.id == jobs[0].id
            assert await again.result(timeout_s=10) == runs[0]
    assert await sql.value("select count(*) from agentrt.all_jobs") == 1


async def test_a_dedup_holds_for_its_agent_only(client: agentrt.Client) -> None:
    one = await agentrt.to("one").options(dedup="x").send()
    assert (await agentrt.to("one").options(dedup="x").send()).id == one.id
    assert (await agentrt.to("two").options(dedup="x").send()).id != one.id


async def test_the_job_of_a_killed_worker_is_recovered_whatever_was_sent_with_its_dedup_and_key_meanwhile(
    start: Start, client: agentrt.Client, sql: Sql
) -> None:
    worker = start("run", "agents.py", "--lease", "1", "--poll", "600", source=source)
    first = await work.options(dedup="d", key="k").send(n=1)
    await sql.until(first.id, "running")
    worker.kill()

    same = await work.options(dedup="d", key="k").send(n=1)
    assert same.id == first.id
    behind = await work.options(key="k").send(n=2)
    assert await behind.status() is agentrt.State.blocked

    worker = start("run", "agents.py", "--lease", "1", "--poll", "600", name="second")
    assert await first.result(timeout_s=30) == 1
    assert await behind.result(timeout_s=30) == 2
    rows = await sql.rows("select id, attempt from agentrt.history order by finished_at")
    assert rows == [{"id": first.id, "attempt": 2}, {"id": behind.id, "attempt": 1}]
    assert "unique" not in worker.log().lower()
