"""Stops: an attempt that is told to stop ends as told, whenever it hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from agentrt import Retry, agent
from agentrt.engine.supervisor import Supervisor
from agentrt.model import Claimed
from agentrt.testing import supervising
from agentrt.testing.inside import supervising_on
from tests.engine.stores import DeafToCancels, LateSweep
from tests.support import Sql, eventually


@pytest.mark.parametrize(
    ("reason", "ends", "runs"),
    [
        ("cancelled", "cancelled", 0),
        ("deadline", "cancelled", 0),
        ("shutdown", "succeeded", 1),
        ("timeout", "succeeded", 1),
    ],
)
async def test_an_attempt_that_is_stopped_before_it_has_begun_ends_as_told_and_frees_its_slot(
    database: str, sql: Sql, reason: str, ends: str, runs: int
) -> None:
    ran: list[int] = []

    @agent(retry=Retry(base_s=0))
    async def work() -> None:
        ran.append(1)

    async with supervising(database, work, slots=1) as supervisor:
        runner = supervisor._runner
        start = runner.start

        def start_and_stop(jobs: Sequence[Claimed], granted_at: float, cause: str) -> None:
            start(jobs, granted_at, cause)
            runner.attempts[jobs[0].id].stop(reason)
            runner.start = start  # type: ignore[method-assign]  # the next one is left alone

        runner.start = start_and_stop  # type: ignore[method-assign]  # between a start and the coroutine's first line is no other place
        job_id = await sql.value("insert into agentrt.jobs(agent) values ('work') returning id")
        row = await sql.until(job_id, ends)
        assert len(ran) == runs
        assert row["attempt_count"] == (2 if reason == "timeout" else 1)

        async def none_left() -> bool:
            return not runner.attempts

        await eventually(none_left)
        await sql.until(await sql.value("insert into agentrt.jobs(agent) values ('work') returning id"), "succeeded")


async def lose(supervisor: Supervisor, sql: Sql) -> int:
    """Have a job run whose process thinks that it has lost it: its lease ends, and nobody gives it back."""
    runner = supervisor._runner
    start = runner.start
    lost = asyncio.Event()

    def start_and_lose(jobs: Sequence[Claimed], granted_at: float, cause: str) -> None:
        start(jobs, granted_at, cause)
        runner.attempts[jobs[0].id].stop("lost")
        runner.start = start  # type: ignore[method-assign]  # as above
        lost.set()

    runner.start = start_and_lose  # type: ignore[method-assign]  # as above
    job_id: int = await sql.value("insert into agentrt.jobs(agent) values ('work') returning id")
    await lost.wait()
    return job_id


async def test_a_lease_that_is_lost_before_its_attempt_has_begun_stores_nothing(database: str, sql: Sql) -> None:
    ran: list[int] = []

    @agent
    async def work() -> None:
        ran.append(1)

    async with supervising(database, work, slots=1, lease_s=1.0) as supervisor:
        row = await sql.until(await lose(supervisor, sql), "succeeded")  # the sweep takes it back when the lease ends
        assert (row["attempt_count"], len(ran)) == (2, 1)


async def test_a_lease_that_ends_is_seen_although_the_sweep_was_looking_when_it_began(database: str, sql: Sql) -> None:
    @agent
    async def work() -> None: ...

    store = LateSweep(database)
    try:
        async with supervising_on(store, work, lease_s=1.0) as supervisor:
            await store.looked.wait()
            job_id = await lose(supervisor, sql)
            store.may_answer.set()
            await sql.until(job_id, "succeeded")
    finally:
        await store.close()


async def test_a_cancel_is_heard_although_the_look_for_it_lost_its_connection(database: str, sql: Sql) -> None:
    begun = asyncio.Event()

    @agent
    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    store = DeafToCancels(database)
    try:
        async with supervising_on(store, work):
            job_id = await sql.value("insert into agentrt.jobs(agent) values ('work') returning id")
            await begun.wait()
            assert await store.cancel(job_id, "no longer needed") == "requested"
            await sql.until(job_id, "cancelled")  # well before the look that nobody asks for
            assert store.asked >= 2
    finally:
        await store.close()
