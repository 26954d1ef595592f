"""Turns: the end of a job that must wait for its mailbox takes nothing else along into the wait."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from agentrt import Agent, agent
from agentrt.model import Claimed, Finish, Wanted
from agentrt.store.postgres import PostgresStore
from agentrt.testing import supervising
from agentrt.testing.inside import supervising_on
from tests.support import Sql, eventually, locked, waiting

soon_s = 5.0
insert = "insert into agentrt.jobs(agent, key) values ($1, $2) returning id"
renewed = "select expires > $2::timestamptz + interval '1.5 s' from agentrt.leases where job_id = $1"  # leases of 0.6 s


def agents() -> tuple[asyncio.Event, Agent[..., Any], Agent[..., Any]]:
    """`chat` runs until the event is set, `other` ends at once."""
    end = asyncio.Event()

    @agent
    async def chat() -> None:
        await end.wait()

    @agent
    async def other() -> None: ...

    return end, chat, other


async def test_a_job_that_is_ready_starts_while_the_end_of_another_waits_for_its_mailbox(
    database: str, sql: Sql
) -> None:
    end, chat, other = agents()
    async with supervising(database, chat, other, poll_s=600, slots=4, drain_s=soon_s) as supervisor:
        talk = await sql.value(insert, "chat", "k")
        await sql.until(talk, "running")
        async with locked(database, "k", "chat"):
            end.set()
            await sql.until_count(waiting, 1)
            ids = [await sql.value(insert, "other", None) for _ in range(3)]
            for job_id in ids:
                assert (await sql.until(job_id, "succeeded", within_s=soon_s))["attempt_count"] == 1
            assert await sql.state(talk) == "running"
        assert (await sql.until(talk, "succeeded", within_s=soon_s))["attempt_count"] == 1
        assert supervisor.stats.claimed["poll"] == 0


async def test_no_attempt_is_lost_to_an_end_that_waited_longer_than_a_lease(database: str, sql: Sql) -> None:
    end, chat, other = agents()
    async with supervising(database, chat, other, lease_s=0.6, poll_s=600, slots=4, drain_s=soon_s) as supervisor:
        talk = await sql.value(insert, "chat", "k")
        after = await sql.value(insert, "chat", "k")
        await sql.until(talk, "running")
        async with locked(database, "k", "chat"):
            end.set()
            ended = await sql.value("select clock_timestamp()")
            jobs = [await sql.value(insert, "other", None) for _ in range(3)]
            await eventually(lambda: sql.value(renewed, talk, ended))
        for job_id in (talk, after, *jobs):
            assert (await sql.until(job_id, "succeeded", within_s=soon_s))["attempt_count"] == 1
        assert await sql.value("select count(*) from agentrt.attempts") == 0
        assert supervisor.stats.outcomes["lost"] == 0


async def test_the_messages_of_one_mailbox_cost_one_statement_each(database: str, sql: Sql) -> None:
    @agent
    async def chat() -> None: ...

    store = PostgresStore(database)
    try:
        async with supervising_on(store, chat, poll_s=600) as supervisor:
            await sql.run("insert into agentrt.jobs(agent, key) select 'chat', 'k' from generate_series(1, 200)")
            before = store.statements
            await sql.until_none_unfinished()
            assert store.statements - before < 200 * 1.3  # some are of beats and looks
        assert supervisor.stats.outcomes == {"succeeded": 200}
    finally:
        await store.close()


class Asked(PostgresStore):
    """Notes of the claims that ride with ends how many are under way at a time, and for how many jobs in all they ask."""

    def __init__(self, database: str) -> None:
        super().__init__(database)
        self.under_way = 0
        self.most = 0
        self.turns = 0
        self.most_turns = 0

    async def turn(
        self, outcomes: Sequence[Finish], wanted: Wanted, *, keyed: Collection[str], limited: bool
    ) -> tuple[set[int], list[Claimed]]:
        self.under_way += wanted.total
        self.most = max(self.most, self.under_way)
        self.turns += 1
        self.most_turns = max(self.most_turns, self.turns)
        try:
            return await super().turn(outcomes, wanted, keyed=keyed, limited=limited)
        finally:
            self.under_way -= wanted.total
            self.turns -= 1


@pytest.mark.parametrize("concurrency", [None, 40])
async def test_while_there_is_more_to_do_no_slot_is_left_out_however_many_turns_are_under_way(
    database: str, sql: Sql, concurrency: int | None
) -> None:
    running, most = 0, 0

    @agent(concurrency=concurrency)
    async def quick() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    await sql.run("insert into agentrt.jobs(agent) select 'quick' from generate_series(1, 3_000)")
    store = Asked(database)
    try:
        async with supervising_on(store, quick, slots=100, poll_s=600) as supervisor:
            await sql.until_none_unfinished()
        assert store.most == (concurrency or 100)
        assert most <= (concurrency or 100)
        assert supervisor.stats.outcomes == {"succeeded": 3_000}
    finally:
        await store.close()


async def test_of_several_processes_only_the_oldest_has_two_turns_under_way(database: str, sql: Sql) -> None:
    @agent
    async def work() -> None: ...

    stores = [Asked(database), Asked(database)]  # the oldest is the one whose first beat came first
    try:
        async with supervising_on(stores[0], work) as first, supervising_on(stores[1], work) as second:

            async def know_each_other() -> bool:
                return first._committer.overlaps != second._committer.overlaps

            await eventually(know_each_other)
            await sql.run("insert into agentrt.jobs(agent) select 'work' from generate_series(1, 3000)")
            await sql.until_none_unfinished()
        assert sorted(store.most_turns for store in stores) == [1, 2]
    finally:
        await asyncio.gather(*(store.close() for store in stores))
