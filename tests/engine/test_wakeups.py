"""No message waits for the poll: each way in which a job becomes claimable wakes a claimer."""

from __future__ import annotations

import asyncio

import asyncpg

import agentrt
from agentrt import Retry, agent
from tests.conftest import supervising
from tests.support import Sql, eventually

soon_s = 10.0  # far below the poll of these tests


@agent
async def echo(x: int) -> int:
    return x


async def test_a_job_that_was_locked_when_the_claim_looked_is_claimed_once_the_lock_is_gone(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    job_id = await sql.value("""insert into agentrt.jobs(agent, payload) values ('echo', '{"x": 2}') returning id""")
    held = sql.connection.transaction()
    await held.start()
    await sql.run("update agentrt.jobs set priority = 1 where id = $1", job_id)  # as a waiter that marks it would
    async with supervising(database, echo, poll_s=600) as supervisor:
        await echo.ask(3)  # so the supervisor has looked, and has skipped the locked row
        assert await sql.state(job_id) == "ready"
        await held.commit()
        await sql.until(job_id, "succeeded", within_s=soon_s)
        assert supervisor.stats.claimed["poll"] == 0


someone_who_wants_to_be_rung = (
    "insert into agentrt.supervisors(id, host, pid, agents, slots) values (gen_random_uuid(), 'here', 1, '{}', 1)"
)


async def test_an_update_of_a_ready_job_wakes_the_claimer_that_may_have_skipped_it(database: str, sql: Sql) -> None:
    heard: list[str] = []
    listening = await asyncpg.connect(database)
    try:
        await listening.add_listener("agentrt.ready", lambda *_: heard.append("ready"))
        await sql.run(someone_who_wants_to_be_rung)
        job_id = await sql.value("insert into agentrt.jobs(agent) values ('nobody') returning id")

        async def once() -> bool:
            return len(heard) == 1

        await eventually(once)
        await sql.run("update agentrt.jobs set priority = 1 where id = $1", job_id)

        async def twice() -> bool:
            return len(heard) == 2

        await eventually(twice)
    finally:
        await listening.close()


async def test_plain_sql_inserts_wake_an_agent(database: str, sql: Sql) -> None:
    async with supervising(database, echo, poll_s=600) as supervisor:
        job_id = await sql.value(
            """insert into agentrt.jobs(agent, payload) values ('echo', '{"x": 5}') returning id"""
        )
        await sql.until(job_id, "succeeded", within_s=soon_s)
        assert supervisor.stats.claimed["poll"] == 0


async def test_room_under_a_limit_over_all_processes_is_news_to_every_process(
    database: str, client: agentrt.Client
) -> None:
    inside = 0
    most = 0

    @agent(limit=1)
    async def alone(n: int) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.01)
        inside -= 1
        return n

    async with supervising(database, alone, poll_s=600) as one, supervising(database, alone, poll_s=600) as two:
        jobs = [await alone.send(n) for n in range(20)]
        assert [await job.result(timeout_s=30) for job in jobs] == list(range(20))
        assert one.stats.claimed["poll"] + two.stats.claimed["poll"] == 0
    assert most == 1


async def test_an_agents_own_concurrency_is_kept_and_its_freed_slot_is_used(
    database: str, client: agentrt.Client
) -> None:
    inside = 0
    most = 0

    @agent(concurrency=2)
    async def pair(n: int) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.005)
        inside -= 1
        return n

    async with supervising(database, pair, poll_s=600) as supervisor:
        jobs = await agentrt.send_many([pair.message(n) for n in range(30)])
        assert [await job.result(timeout_s=30) for job in jobs] == list(range(30))
        assert supervisor.stats.claimed["poll"] == 0
    assert most == 2


async def test_a_retry_a_delay_and_a_nearer_delay_are_woken_by_the_timer(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    @agent(retry=Retry(max_attempts=2, base_s=0.3, jitter=0))
    async def once_broken() -> int:
        if agentrt.current().attempt == 1:
            raise ValueError("first")
        return 1

    async with supervising(database, echo, once_broken, poll_s=600) as supervisor:
        far = await echo.options(delay_s=6).send(1)
        near = await echo.options(delay_s=0.4).send(2)
        broken = await once_broken.send()
        for job in (near, broken, far):
            await job.result(timeout_s=2 * soon_s)
        late = await sql.rows(
            "select id, extract(epoch from claimed_at - run_after)::float8 as late from agentrt.history"
        )
        assert all(-0.001 <= row["late"] < 5 for row in late), late
        assert supervisor.stats.claimed["poll"] == 0
