"""Floors: a claim skips what is known to be gone, and a ready job that lies there all the same is found by the next beats."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from agentrt import agent
from agentrt.engine import floors
from agentrt.errors import StoreUnavailable
from agentrt.testing import supervising
from tests.engine.stores import DeafToFloors
from tests.store.verbs import claim, message, send
from tests.support import Sql, bound_s, eventually

soon_s = 5.0
jobs_enough = 50


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Floors after a few jobs and moved often, so that the tests are short."""
    monkeypatch.setattr(floors, "worth_it", jobs_enough)
    monkeypatch.setattr(floors, "period_s", 0.1)
    monkeypatch.setattr(floors, "look_every_s", 0.1)


class Work:
    """An agent whose jobs note their names; those that are called as a gate wait until it is open."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.gates = {"first": asyncio.Event(), "second": asyncio.Event()}

        @agent
        async def work(name: str) -> None:
            if name in self.gates:
                await self.gates[name].wait()
            self.ran.append(name)

        self.agent = work


insert = """
insert into agentrt.jobs(agent, priority, payload)
select 'work', $3, json_build_object('name', $1::text) from generate_series(1, $2)
"""


async def add(sql: Sql, name: str, count: int = 1, priority: int = 5) -> None:
    await sql.run(insert, name, count, priority)


@asynccontextmanager
async def full(database: str, sql: Sql, work: Work) -> AsyncIterator[None]:
    """A supervisor all of whose slots are taken, with more to do: nobody rings it."""
    async with supervising(database, work.agent, slots=2, beat_s=0.2, poll_s=0.5, drain_s=0.5):
        await add(sql, "first", 4)
        await until_quiet(sql)
        yield


async def until_quiet(sql: Sql) -> None:
    await sql.until_count("select count(*) from agentrt.supervisors where quiet", 1)


async def beats(sql: Sql, count: int) -> None:
    for _ in range(count):
        before = await sql.value("select alive_at from agentrt.supervisors")
        await eventually(lambda: sql.value("select alive_at > $1 from agentrt.supervisors", before))  # noqa: B023 - awaited here


async def test_a_job_that_took_its_place_early_and_commits_when_all_after_it_are_done_is_found(
    database: str, sql: Sql
) -> None:
    work = Work()
    late = await asyncpg.connect(database)
    try:
        async with full(database, sql, work):
            transaction = late.transaction()
            await transaction.start()
            await late.execute(insert, "late", 1, 5)
            await add(sql, "short", 3 * jobs_enough)
            work.gates["first"].set()
            await sql.until_none_unfinished()
            await beats(sql, 5)  # what looks about for a while after work has ended is over
            await transaction.commit()
            await sql.until_none_unfinished(within_s=soon_s)
    finally:
        await late.close()
    assert work.ran.count("late") == 1


async def test_a_job_that_gets_the_priority_of_others_that_went_before_it_is_found(database: str, sql: Sql) -> None:
    work = Work()
    async with full(database, sql, work):
        await add(sql, "moved", priority=9)
        await add(sql, "short", 3 * jobs_enough)
        await add(sql, "second", 4)
        work.gates["first"].set()
        await sql.until_count("select count(*) from agentrt.jobs", 5)
        await until_quiet(sql)
        await sql.run("update agentrt.jobs set priority = 5 where priority = 9")
        work.gates["second"].set()
        await sql.until_none_unfinished(within_s=soon_s)
    assert work.ran[-5:].count("moved") == 1


async def test_a_job_below_the_floor_is_found_although_the_first_look_lost_its_connection(
    database: str, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floors, "period_s", 0.0)
    store = DeafToFloors(database)
    known = floors.Floors(store, ["a"])
    found = asyncio.Event()
    known.on_found = found.set
    try:
        await send(store, *(message() for _ in range(jobs_enough)))
        jobs = await claim(store)
        known.seen(jobs)
        for _ in range(3):
            moved = known.of(["a"])
        assert moved is not None
        assert moved[5] == jobs[0].ord
        await sql.run("update agentrt.jobs set status = 'ready', ord = 0 where id = $1", jobs[7].id)
        with pytest.raises(StoreUnavailable):
            await known.run()
        task = asyncio.ensure_future(known.run())  # as the supervisor does with a loop that met an outage
        async with asyncio.timeout(bound_s):
            await found.wait()
        task.cancel()
    finally:
        await store.close()
