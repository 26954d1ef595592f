"""Sends and steps of concurrent tasks share statements, and each of them succeeds or fails alone."""

from __future__ import annotations

import asyncio

from agentrt.errors import LeaseLost, StoreError, StoreUnavailable
from agentrt.model import Finish, State
from agentrt.store.postgres import PostgresStore
from tests.store.verbs import claim, message, record, send, send_one
from tests.support import Sql


async def test_sends_of_many_tasks_share_statements_and_come_back_each_with_its_own(
    store: PostgresStore, sql: Sql
) -> None:
    await send_one(store)
    before = store.statements
    ids = await asyncio.gather(*(send_one(store, payload=b'{"n": %d}' % n, key=f"k{n % 7}") for n in range(200)))
    assert store.statements - before <= 10
    for n, job_id in enumerate(ids):
        assert await sql.value("select (payload ->> 'n')::int from agentrt.jobs where id = $1", job_id) == n


async def test_a_message_that_the_database_refuses_fails_alone(store: PostgresStore, sql: Sql) -> None:
    payloads = [b"{}"] * 10 + [b"no json"] + [b"{}"] * 10
    answers = await asyncio.gather(*(send_one(store, payload=each) for each in payloads), return_exceptions=True)
    assert [isinstance(answer, StoreError) for answer in answers] == [each != b"{}" for each in payloads]
    assert await sql.value("select count(*) from agentrt.jobs") == 20


async def test_a_sender_that_is_cancelled_takes_no_other_with_it(store: PostgresStore, sql: Sql) -> None:
    tasks = [asyncio.ensure_future(send_one(store)) for _ in range(20)]
    await asyncio.sleep(0)  # the first are under way, the others wait for their turn
    tasks[10].cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(answer, asyncio.CancelledError) for answer in answers] == [n == 10 for n in range(20)]
    assert await sql.value("select count(*) from agentrt.jobs") == 19


async def test_a_single_send_goes_at_once_and_alone(store: PostgresStore) -> None:
    await send_one(store)
    for _ in range(3):
        before = store.statements
        await send_one(store)
        assert store.statements == before + 1


async def test_when_the_answer_is_lost_each_sender_hears_it_and_nothing_is_repeated(
    store: PostgresStore, sql: Sql
) -> None:
    await send_one(store)
    await sql.run(
        "create function stop() returns trigger language plpgsql as $$ begin"
        " if new.agent = 'last' then perform pg_terminate_backend(pg_backend_pid()); end if; return new; end $$"
    )
    await sql.run("create trigger stop before insert on agentrt.jobs for each row execute function stop()")
    names = ["a"] * 12 + ["last"] * 4
    answers = await asyncio.gather(*(send_one(store, name) for name in names), return_exceptions=True)
    lost = [answer for answer in answers if isinstance(answer, BaseException)]
    assert lost
    assert all(isinstance(answer, StoreUnavailable) for answer in lost)
    assert await sql.value("select count(*) from agentrt.jobs") == 1 + len(names) - len(lost)


async def test_steps_of_many_jobs_share_statements_and_only_who_lost_its_job_hears_so(
    store: PostgresStore, sql: Sql
) -> None:
    await send(store, *(message() for _ in range(60)))
    jobs = await claim(store)
    assert await store.finish([Finish(jobs[7].id, jobs[7].fence, State.succeeded, "1")], keyed=False, limited=False)
    before = store.statements
    answers = await asyncio.gather(*(record(store, job, "s#0", str(job.id)) for job in jobs), return_exceptions=True)
    assert store.statements - before <= 6
    assert [isinstance(answer, LeaseLost) for answer in answers] == [n == 7 for n in range(60)]
    rows = await sql.rows("select job_id, output::text as output from agentrt.steps order by job_id")
    assert [(row["job_id"], row["output"]) for row in rows] == [
        (job.id, str(job.id)) for job in sorted(jobs, key=lambda job: job.id) if job is not jobs[7]
    ]


async def test_one_step_of_several_tasks_is_stored_once(store: PostgresStore, sql: Sql) -> None:
    await send_one(store)
    (job,) = await claim(store)
    outputs = set(await asyncio.gather(*(record(store, job, "s#0", str(n)) for n in range(8))))
    assert outputs == {await sql.value("select output::text from agentrt.steps")}
