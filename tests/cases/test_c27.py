"""C27, cancel: an agent that catches its cancellation and returns, or raises something else, hides that it was cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import agentrt
from agentrt import Fail, Retry, RetryAfter, agent
from tests.conftest import supervising
from tests.support import Sql, eventually

pytestmark = pytest.mark.case
quick = Retry(max_attempts=3, base_s=0.05, factor=1)
done: list[str] = []


async def _sleep() -> None:
    done.append("start")
    await asyncio.sleep(600)


@agent(retry=quick)
async def returns() -> str:
    try:
        await _sleep()
    except asyncio.CancelledError:
        return "ok"
    return "never"


@agent(retry=quick)
async def raises() -> None:
    try:
        await _sleep()
    except asyncio.CancelledError:
        raise ValueError("not me") from None


@agent(retry=quick)
async def fails() -> None:
    try:
        await _sleep()
    finally:
        raise Fail("closed")


@agent(retry=quick)
async def postpones() -> None:
    try:
        await _sleep()
    finally:
        raise RetryAfter(0.01)


@agent(retry=quick)
async def returns_what_cannot_be_stored() -> object:
    try:
        await _sleep()
    except asyncio.CancelledError:
        return object()
    return None


@agent(retry=quick)
async def cleans_up() -> None:
    try:
        await _sleep()
    finally:
        await asyncio.sleep(0.7)
        done.append("cleaned")


@agent(retry=quick)
async def cleans_up_in_a_group() -> None:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_sleep())
            group.create_task(asyncio.sleep(600))
    finally:
        await asyncio.sleep(0.7)
        done.append("cleaned")


agents: list[agentrt.Agent[..., Any]] = [
    returns,
    raises,
    fails,
    postpones,
    returns_what_cannot_be_stored,
    cleans_up,
    cleans_up_in_a_group,
]


@pytest.mark.parametrize("cancelled", agents, ids=lambda a: a.name)
async def test_a_cancelled_job_ends_as_cancelled_whatever_its_agent_makes_of_it(
    cancelled: agentrt.Agent[..., Any], database: str, client: agentrt.Client, sql: Sql
) -> None:
    done.clear()

    async def started() -> bool:
        return done == ["start"]

    async with supervising(database, *agents, poll_s=600):
        job = await cancelled.send()
        await eventually(started)
        assert await job.cancel("stop it")
        row = await sql.until(job.id, "cancelled", "succeeded", "failed", within_s=15)
        assert (row["state"], row["last_error"], row["attempt_count"]) == ("cancelled", "Cancelled: stop it", 1)
        assert done == (["start", "cleaned"] if "cleans_up" in cancelled.name else ["start"])  # before the row said so
        with pytest.raises(agentrt.JobCancelled):
            await job.result(timeout_s=10)
    assert await sql.value("select count(*) from agentrt.jobs") == 0
    assert len(done) <= 2
