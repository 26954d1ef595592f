"""C22, retry: a timeout of the job is taken for a cancel, is not retried, or is retried at once without its wait.

An overrun of the runtime's limit, a TimeoutError of the agent's own and a cancel on request are three different ends.
"""

from __future__ import annotations

import asyncio
import time

import pytest

import agentrt
from agentrt import Retry, agent
from tests.conftest import supervising
from tests.support import Sql, eventually

pytestmark = pytest.mark.case
limit_s = 0.3
quick = Retry(max_attempts=3, base_s=0.4, factor=1, jitter=0)
runs = """select attempt, reason, kind, extract(epoch from ended_at - claimed_at)::float8 as ran_s
            from agentrt.attempts order by fence"""
gaps = """select extract(epoch from claimed_at - lag(ended_at) over (order by fence))::float8 as gap_s
            from agentrt.attempts order by fence"""


@agent(retry=quick, timeout_s=limit_s)
async def slow() -> None:
    await asyncio.sleep(600)


@agent(retry=quick, timeout_s=limit_s)
async def stubborn() -> str:
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        return "done"
    return "never"


@agent(retry=quick, timeout_s=limit_s)
async def blurring() -> None:
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        raise ValueError("something else") from None


@agent(retry=quick, timeout_s=limit_s)
def blocking() -> None:
    time.sleep(3)


@agent(retry=quick)
async def own_timeout() -> None:
    async with asyncio.timeout(0.01):
        await asyncio.sleep(600)


@agent(retry=quick)
async def own_error() -> None:
    raise TimeoutError("the printer does not answer")


@pytest.mark.parametrize("overrun", [slow, stubborn, blurring, blocking], ids=lambda a: a.name)
async def test_a_job_that_overruns_its_limit_uses_its_attempts_with_their_waits_and_fails_of_timeout(
    overrun: agentrt.Agent[[], object], database: str, client: agentrt.Client, sql: Sql
) -> None:
    async with supervising(database, overrun, poll_s=600):
        job = await overrun.send()
        with pytest.raises(agentrt.JobFailed, match=f"timeout: Timeout: it ran longer than {limit_s:g} s") as failed:
            await job.result(timeout_s=30)
    assert failed.value.reason == "timeout"
    attempts = await sql.rows(runs)
    assert [(row["attempt"], row["reason"], row["kind"]) for row in attempts] == [
        (n, "timeout", "Timeout") for n in (1, 2, 3)
    ]
    assert all(row["ran_s"] >= limit_s * 0.9 for row in attempts)
    assert all(row["gap_s"] >= quick.base_s * 0.99 for row in (await sql.rows(gaps))[1:])


@pytest.mark.parametrize("failing", [own_timeout, own_error], ids=lambda a: a.name)
async def test_a_timeout_error_of_the_agents_own_is_a_plain_failure(
    failing: agentrt.Agent[[], None], database: str, client: agentrt.Client, sql: Sql
) -> None:
    async with supervising(database, failing, poll_s=600):
        with pytest.raises(agentrt.JobFailed) as failed:
            await failing.options(timeout_s=30).ask()
    assert failed.value.reason == "error"
    attempts = await sql.rows(runs)
    assert [(row["attempt"], row["reason"], row["kind"]) for row in attempts] == [
        (n, "error", "TimeoutError") for n in (1, 2, 3)
    ]


async def test_a_cancel_on_request_is_neither_and_is_not_retried(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    started: list[int] = []

    @agent(retry=quick, timeout_s=60)
    async def patient() -> None:
        started.append(agentrt.current().attempt)
        await asyncio.sleep(600)

    async def running() -> bool:
        return bool(started)

    async with supervising(database, patient, poll_s=600):
        job = await patient.send()
        await eventually(running)
        assert await job.cancel("changed my mind")
        with pytest.raises(agentrt.JobCancelled, match="changed my mind"):
            await job.result(timeout_s=10)
    assert started == [1]
    assert [(row["attempt"], row["reason"]) for row in await sql.rows(runs)] == [(1, "cancelled")]
