"""Looks that overlap: what one of them could not see is looked for when it is back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentrt import agent
from agentrt.store import Heard
from agentrt.store.postgres.listener import PostgresNotifier
from agentrt.testing.inside import supervising_on
from tests.engine.stores import NoLooksBehind
from tests.support import Sql


class SlowAnswers(NoLooksBehind):
    """A store whose answers to the ends of keyed jobs are held back, when the statement is done, until they are let through."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.held = asyncio.Event()
        self.let_through = asyncio.Event()
        self.rung = asyncio.Event()

    async def turn(self, *values: Any, **options: Any) -> Any:
        answer = await super().turn(*values, **options)
        if options["keyed"]:
            self.held.set()
            await self.let_through.wait()
        return answer

    async def listen(self, heard: Heard) -> PostgresNotifier:
        def hear(channel: str, payload: str) -> None:
            heard(channel, payload)
            if channel == "ready":
                self.rung.set()

        return await super().listen(hear)


@pytest.mark.parametrize("limits", [{}, {"concurrency": 1}], ids=["all slots promised", "all of its agent's"])
async def test_a_job_that_comes_while_its_slots_are_promised_to_a_claim_that_did_not_see_it_runs(
    limits: dict[str, Any], database: str, sql: Sql
) -> None:
    order: list[str] = []

    @agent(**limits)
    async def work(name: str) -> None:
        order.append(name)

    @agent
    async def other() -> None: ...

    insert = "insert into agentrt.jobs(agent, key, payload) values ('work', $1, json_build_object('name', $2::text))"
    store = SlowAnswers(database)
    try:
        async with supervising_on(store, work, other, poll_s=600, slots=4) as supervisor:
            await sql.until_count(
                "select count(*) from agentrt.supervisors where not quiet", 1
            )  # from here on it is rung
            await sql.run(insert, None, "warm")
            await sql.until_count("select count(*) from agentrt.history", 1)
            await sql.run(insert, "k", "first")
            await store.held.wait()  # the end of a keyed job has claimed for every slot that is free, and found nothing
            store.rung.clear()
            await sql.run(insert, None, "second")
            await store.rung.wait()
            for _ in range(10):  # turns of the loop: the ring is answered as far as it can be
                await asyncio.sleep(0)
            store.let_through.set()
            await sql.until_none_unfinished()
            assert supervisor.stats.claimed["poll"] == 0
    finally:
        await store.close()
    assert order == ["warm", "first", "second"]
