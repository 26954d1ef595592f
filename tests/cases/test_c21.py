"""C21 (retry): whether the first try counts is unclear, so a job runs once more or once less than it was told."""

from __future__ import annotations

import asyncpg
import pytest

import agentrt
from agentrt import Retry, UsageError, agent
from tests.conftest import supervising
from tests.support import Sql

pytestmark = pytest.mark.case


@pytest.mark.parametrize("max_attempts", [1, 2, 3])
@pytest.mark.parametrize("said_by", ["agent", "message", "sql"])
async def test_a_job_that_always_fails_runs_exactly_max_attempts_times(
    database: str, client: agentrt.Client, sql: Sql, max_attempts: int, said_by: str
) -> None:
    seen: list[int] = []

    @agent(retry=Retry(max_attempts=max_attempts if said_by == "agent" else 7, base_s=0.02))
    async def fails() -> None:
        seen.append(agentrt.current().attempt)
        assert agentrt.current().max_attempts == max_attempts
        raise ValueError("always")

    async with supervising(database, fails, poll_s=600):
        if said_by == "sql":
            insert = "insert into agentrt.jobs(agent, max_attempts) values ('fails', $1) returning id"
            job = client.job(await sql.value(insert, max_attempts))
        else:
            address = fails.options(max_attempts=max_attempts) if said_by == "message" else fails
            job = await address.send()
        with pytest.raises(agentrt.JobFailed, match="always"):
            await job.result(timeout_s=20)

    assert seen == list(range(1, max_attempts + 1))
    rows = await sql.rows("select attempt, reason from agentrt.attempts order by fence")
    assert rows == [{"attempt": attempt, "reason": "error"} for attempt in seen]
    assert await sql.value("select attempt from agentrt.history") == max_attempts


@pytest.mark.parametrize("wrong", [0, -1])
async def test_no_attempts_at_all_is_refused_wherever_it_is_said(sql: Sql, wrong: int) -> None:
    with pytest.raises(UsageError, match=f"max_attempts is {wrong}; it must be a number from 1"):
        Retry(max_attempts=wrong)
    with pytest.raises(UsageError, match=f"max_attempts is {wrong}; it must be a number from 1"):
        agentrt.to("fails").options(max_attempts=wrong)
    with pytest.raises(asyncpg.CheckViolationError, match="max_attempts"):
        await sql.run("insert into agentrt.jobs(agent, max_attempts) values ('fails', $1)", wrong)
