"""C28, cancel: a CancelledError that comes from inside the job escapes `except Exception` and takes the worker along."""

from __future__ import annotations

import asyncio

import pytest

import agentrt
from agentrt import Retry, agent
from tests.conftest import supervising
from tests.support import Sql

pytestmark = pytest.mark.case
quick = Retry(max_attempts=2, base_s=0.05, factor=1)


@agent
async def neighbour(gate: int) -> int:
    await asyncio.sleep(0.3)
    return gate


@agent(retry=quick)
async def inner_task() -> None:
    inner = asyncio.ensure_future(asyncio.sleep(600))
    inner.cancel()
    await inner


@agent(retry=quick)
async def inner_gather() -> None:
    inner = asyncio.ensure_future(asyncio.sleep(600))
    asyncio.get_running_loop().call_soon(inner.cancel)
    await asyncio.gather(inner, asyncio.sleep(0.05))


@agent(retry=quick)
async def inner_future() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


@agent(retry=quick)
async def by_hand() -> None:
    raise asyncio.CancelledError("by hand")


@agent(retry=quick)
async def its_own_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel("by itself")
    await asyncio.sleep(600)


@agent(retry=quick)
def in_a_thread() -> None:
    raise asyncio.CancelledError("in a thread")


agents = [inner_task, inner_gather, inner_future, by_hand, its_own_task, in_a_thread]


@pytest.mark.parametrize("failing", agents, ids=lambda a: a.name)
async def test_a_cancellation_from_inside_the_job_is_a_failed_attempt_and_touches_no_other_job(
    failing: agentrt.Agent[[], None], database: str, client: agentrt.Client, sql: Sql
) -> None:
    async with supervising(database, neighbour, *agents, poll_s=600) as supervisor:
        beside = [await neighbour.send(n) for n in range(10)]
        job = await failing.send()
        with pytest.raises(agentrt.JobFailed, match="CancelledError") as failed:
            await job.result(timeout_s=15)
        assert failed.value.reason == "error"
        assert [await other.result(timeout_s=15) for other in beside] == list(range(10))
        assert await neighbour.options(timeout_s=15).ask(11) == 11  # the worker goes on
        assert supervisor.health()["ok"]
    attempts = await sql.rows("select attempt, reason, kind from agentrt.attempts order by fence")
    assert [(row["attempt"], row["reason"]) for row in attempts] == [(1, "error"), (2, "error")]
    assert all(row["kind"].endswith("CancelledError") for row in attempts)
    assert await sql.value("select count(*) from agentrt.history where agent = 'neighbour' and attempt = 1") == 11
