"""C76, ordering: better jobs hold back a worse one. Priorities are strict, and `why` says what stands before it."""

from __future__ import annotations

import asyncio

import pytest

import agentrt
from agentrt import agent
from agentrt.cli.reasons import why_line
from tests.conftest import supervising
from tests.support import Sql, eventually

pytestmark = pytest.mark.case


async def test_a_job_of_low_priority_waits_for_all_better_ones_and_why_names_them(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    order: list[str] = []
    go_on = asyncio.Event()

    @agent
    async def work(name: str) -> None:
        order.append(name)
        await go_on.wait()

    async with supervising(database, work, slots=1, poll_s=600):
        await work.send("first")

        async def running() -> bool:
            return order == ["first"]

        await eventually(running)
        low = await work.options(priority=9).send("low")
        for n in range(5):
            await work.options(priority=1).send(f"high {n}")
        standing = await client.store.standing(low.id)
        assert standing is not None
        assert "5 jobs are ahead of it" in why_line(standing, None, None)
        go_on.set()
        for n in range(5, 20):  # it goes on raining
            await work.options(priority=1).send(f"high {n}")
        await sql.until(low.id, "succeeded")
        await sql.until_none_unfinished()
    assert order.index("low") > order.index("high 4")
    assert sorted(order) == sorted(["first", "low", *(f"high {n}" for n in range(20))])
