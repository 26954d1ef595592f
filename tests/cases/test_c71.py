"""C71, memory: memory and the time of a job grow with the number of jobs that were ever run."""

from __future__ import annotations

import statistics
import time

import psutil
import pytest

from tests.conftest import Start
from tests.support import Sql, eventually

pytestmark = [pytest.mark.case, pytest.mark.timeout(480)]
source = """
import asyncio
from agentrt import Fail, agent

@agent
async def noop(n: int) -> int:
    return n

@agent
async def broken(n: int) -> int:
    raise Fail("as it was told")

@agent
async def endless(n: int) -> None:
    await asyncio.sleep(3600)
"""
fill = """
insert into agentrt.jobs(agent, payload)
select case when n % 20 = 0 then 'broken' when n % 500 = 1 then 'endless' else 'noop' end, json_build_object('n', n)
  from generate_series(1, 10000) n
"""
cancel = (
    "select agentrt.cancel(id, 'enough', false) from agentrt.jobs where agent = 'endless' and cancel_reason is null"
)
mebibyte = 1024 * 1024


async def _ten_thousand(sql: Sql) -> float:
    """Run them, those that would never end cancelled while they run; returns the time."""
    began = time.monotonic()
    await sql.run(fill)
    await sql.until_count("select count(*) from agentrt.jobs where agent <> 'endless'", 0, within_s=90)

    async def over() -> bool:
        await sql.run(cancel)
        return bool(await sql.value("select count(*) = 0 from agentrt.jobs"))

    await eventually(over, within_s=90)
    return time.monotonic() - began


async def test_memory_and_the_time_of_a_job_stay_flat_over_fifty_thousand_jobs(start: Start, sql: Sql) -> None:
    program = start("run", "agents.py", "--log-level", "error", "--poll", "600", source=source)
    process = psutil.Process(program.pid)
    await _ten_thousand(sql)
    warm = process.memory_info().rss
    times = [await _ten_thousand(sql) for _ in range(4)]
    grown = process.memory_info().rss - warm

    ends = await sql.rows(
        "select agent, state, count(*) as jobs from agentrt.history group by agent, state order by agent"
    )
    assert [tuple(end.values()) for end in ends] == [
        ("broken", "failed", 2_500),
        ("endless", "cancelled", 100),
        ("noop", "succeeded", 47_400),
    ]
    assert grown < 10 * mebibyte
    assert min(times[2:]) < 2 * statistics.mean(times[:2]), times
