"""A fleet: only as many supervisors listen as are needed, and the others step forward when they find work."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

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
        idle: list[Supervisor] = [
            await others.enter_async_context(supervising(database, echo, **start)) for _ in range(3)
        ]
        await sql.until_count(waiting, 3)
        assert [each.health()["listener"] for each in idle] == [True] * 3  # it is as it should be

        async def two_listen() -> bool:
            return await listening_sessions(sql) == doorbell.listeners_enough

        await eventually(two_listen)
        assert await echo.ask(1) == 1
        assert await sql.value(waiting) == 3  # what the two can do wakes nobody else

        await first.aclose()  # they leave
        assert await echo.ask(2) == 2
        await sql.until_count("select count(*) from agentrt.supervisors where not standby and not quiet", 2)
        assert sum(each.stats.claimed["poll"] for each in idle) == 0
        assert await echo.ask(3) == 3


soon_s = 8.0
ahead = """
insert into agentrt.supervisors(id, host, pid, agents, slots, started_at)
select gen_random_uuid(), 'here', n, $1, 1, now() - interval '1 h' from generate_series(1, $2) n
"""
held_by_one = """
insert into agentrt.jobs(agent, payload, run_after) values ('echo', '{"x": 4}', 'infinity') returning id
"""
hold = """
update agentrt.jobs set status = 'running', supervisor = (select id from agentrt.supervisors where host = 'here' limit 1),
       attempt = 1, fence = 1, max_attempts = 5, claimed_at = now(), lease_expires = now() + interval '0.5 s'
 where id = $1
"""


async def stands_by_behind(sql: Sql, *agents: str) -> None:
    """Enough that listen, seen by the one that runs as the processes of others, and it has stepped back."""
    await sql.run(ahead, list(agents), doorbell.listeners_enough)
    await sql.until_count(waiting, 1)


async def a_beat_of(sql: Sql, supervisor: Supervisor) -> None:
    beat_at = "select alive_at from agentrt.supervisors where id = $1"
    before = await sql.value(beat_at, supervisor.id)

    async def again() -> bool:
        return bool(await sql.value(beat_at, supervisor.id) > before)

    await eventually(again)


async def test_who_stands_by_sees_to_what_those_ahead_left_when_they_died(database: str, sql: Sql) -> None:
    async with supervising(database, echo, beat_s=0.2, lease_s=1.0, poll_s=600.0) as idle:
        await stands_by_behind(sql, "echo")
        held = await sql.value(held_by_one)
        await sql.run(hold, held)
        due = await sql.value(
            """insert into agentrt.jobs(agent, payload, run_after) values ('echo', '{"x": 5}', now() + interval '0.5 s')
            returning id"""
        )
        # They are dead for so long that nobody counts them any more.
        await sql.run("update agentrt.supervisors set alive_at = alive_at - interval '1 min' where host = 'here'")
        await sql.until(due, "succeeded", within_s=soon_s)
        ended = await sql.until(held, "succeeded", within_s=soon_s)
        assert ended["attempt_count"] == 2
        assert await sql.value(waiting) == 0
        assert idle.stats.claimed["poll"] == 0


async def test_who_stepped_forward_for_a_job_hears_what_is_said_to_it_until_it_has_ended(
    database: str, client: agentrt.Client, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorbell, "standby_look_s", 0.1)  # it finds work long before its next beat

    @agent
    async def asks() -> str:
        return (await agentrt.decide("Which?", ["yes", "no"])).option

    async with supervising(database, echo, asks, beat_s=1.0, poll_s=600.0) as idle:
        await stands_by_behind(sql, "asks", "echo")
        await a_beat_of(sql, idle)
        job_id = await sql.value("insert into agentrt.jobs(agent) values ('asks') returning id")
        decision_id = await eventually(lambda: sql.value("select id from agentrt.decisions where job_id = $1", job_id))
        await a_beat_of(sql, idle)
        assert await sql.value(waiting) == 0
        await client.decide(decision_id, "yes", by="me")
        await sql.until(job_id, "succeeded", within_s=soon_s)
