"""A fleet: only as many supervisors listen as are needed, and the others step forward when they find work."""

from __future__ import annotations

from contextlib import AsyncExitStack

import agentrt
from agentrt import agent
from agentrt.engine import doorbell
from agentrt.engine.supervisor import Supervisor
from agentrt.testing import supervising
from tests.support import Sql, eventually


@agent
async def echo(x: int) -> int:
    return x


waiting = "select count(*) from agentrt.supervisors where standby"


async def listening_sessions(sql: Sql) -> int:
    count: int = await sql.value(
        "select count(*) from pg_stat_activity where datname = current_database() and query ilike 'listen %'"
    )
    return count


async def test_of_a_fleet_only_two_listen_and_the_others_step_forward_when_those_are_gone(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    async with AsyncExitStack() as others, AsyncExitStack() as first:
        start = {"beat_s": 0.2, "poll_s": 600.0}
        for _ in range(doorbell.listeners_enough):
            await first.enter_async_context(supervising(database, echo, **start))
        spare: list[Supervisor] = [
            await others.enter_async_context(supervising(database, echo, **start)) for _ in range(3)
        ]
        await sql.until_count(waiting, 3)
        assert [each.health()["listener"] for each in spare] == [True] * 3  # it is as it should be

        async def two_listen() -> bool:
            return await listening_sessions(sql) == doorbell.listeners_enough

        await eventually(two_listen)
        assert await echo.ask(1) == 1
        assert await sql.value(waiting) == 3  # what the two can do wakes nobody else

        await first.aclose()  # they leave
        assert await echo.ask(2) == 2
        await sql.until_count("select count(*) from agentrt.supervisors where not standby and not quiet", 2)
        assert sum(each.stats.claimed["poll"] for each in spare) == 0
        assert await echo.ask(3) == 3
