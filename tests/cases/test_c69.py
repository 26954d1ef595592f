"""C69, observability: who waits for a result that will never come hangs: failed, cancelled, deleted, pruned or unknown."""

from __future__ import annotations

import asyncio

import pytest

import agentrt
from tests.conftest import Start
from tests.support import Sql, eventually

pytestmark = pytest.mark.case
soon_s = 10.0  # the look behind lost hints comes after 30 s
source = """
import asyncio
from agentrt import Fail, agent

@agent
async def instant(n: int) -> int:
    return n

@agent
async def failing() -> None:
    await asyncio.sleep(0.5)
    raise Fail("no more paper")

@agent
async def endless() -> None:
    await asyncio.sleep(600)
"""
instant, failing, endless = (agentrt.to(name) for name in ("instant", "failing", "endless"))
timeouts = pytest.mark.parametrize("timeout_s", [None, 60.0], ids=["without timeout", "with timeout"])


async def _hears(waiting: asyncio.Task[object]) -> object:
    async with asyncio.timeout(soon_s):
        return await waiting


@timeouts
async def test_a_waiter_in_another_process_hears_of_every_end_at_once(
    timeout_s: float | None, start: Start, client: agentrt.Client, sql: Sql
) -> None:
    await start("run", "agents.py", "--poll", "600", source=source).until("supervisor.started")

    failed = asyncio.ensure_future((await failing.send()).result(timeout_s=timeout_s))
    with pytest.raises(agentrt.JobFailed, match="no more paper") as failure:
        await _hears(failed)
    assert failure.value.reason == "fatal"

    job = await endless.send()
    cancelled = asyncio.ensure_future(job.result(timeout_s=timeout_s))
    await sql.until(job.id, "running")
    await job.cancel("enough")
    with pytest.raises(agentrt.JobCancelled, match="enough"):
        await _hears(cancelled)

    delayed = await endless.options(delay_s=600).send()
    cancelled = asyncio.ensure_future(delayed.result(timeout_s=timeout_s))
    await _watched(sql, delayed.id)
    await delayed.cancel()
    with pytest.raises(agentrt.JobCancelled):
        await _hears(cancelled)

    done = await instant.send(n=5)
    await sql.until(done.id, "succeeded")
    assert await _hears(asyncio.ensure_future(done.result(timeout_s=timeout_s))) == 5
    assert await asyncio.gather(*(client.job(done.id).result(timeout_s=timeout_s) for _ in range(3))) == [5, 5, 5]


async def _watched(sql: Sql, job_id: int) -> None:
    """Until the waiter has looked, and only a hint can tell it more."""

    async def look() -> bool:
        return bool(await sql.value("select watched from agentrt.jobs where id = $1", job_id))

    await eventually(look)


@timeouts
async def test_an_unknown_id_raises_at_once(timeout_s: float | None, client: agentrt.Client) -> None:
    for job_id in (987_654, 2**63 - 1):
        with pytest.raises(agentrt.JobNotFound, match=str(job_id)):
            await _hears(asyncio.ensure_future(client.job(job_id).result(timeout_s=timeout_s)))


@timeouts
async def test_a_job_that_was_pruned_or_deleted_raises_at_once(
    timeout_s: float | None, start: Start, client: agentrt.Client, sql: Sql
) -> None:
    await start("run", "agents.py", "--poll", "600", source=source).until("supervisor.started")
    pruned = await instant.send(n=1)
    await sql.until(pruned.id, "succeeded")
    await sql.run("delete from agentrt.history where id = $1", pruned.id)
    with pytest.raises(agentrt.JobNotFound):
        await _hears(asyncio.ensure_future(pruned.result(timeout_s=timeout_s)))

    for options in ({"delay_s": 600}, {"delay_s": 600, "key": "k"}):
        deleted = await endless.options(**options).send()
        waiting = asyncio.ensure_future(deleted.result(timeout_s=timeout_s))
        await _watched(sql, deleted.id)
        await sql.run("delete from agentrt.jobs where id = $1", deleted.id)
        with pytest.raises(agentrt.JobNotFound):
            await _hears(waiting)


async def test_a_timeout_ends_the_wait_and_not_the_job(start: Start, client: agentrt.Client, sql: Sql) -> None:
    await start("run", "agents.py", "--poll", "600", source=source).until("supervisor.started")
    job = await endless.send()
    with pytest.raises(agentrt.ReplyTimeout, match=f"job {job.id} within 0.2 s"):
        await job.result(timeout_s=0.2)
    await sql.until(job.id, "running")
    command = start("send", "endless", "--wait", "--timeout", "0.2", name="send")
    assert await command.ended() == 1
    await job.cancel()
    with pytest.raises(agentrt.JobCancelled):
        await job.result(timeout_s=soon_s)
