"""prune: what ended long ago leaves with all that was kept of it, and nothing that is still needed does."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import pytest

from agentrt.engine import pruning
from agentrt.engine.pruning import Progress
from agentrt.model import Budget, NewQuestion, Sender, StepMark
from agentrt.store.postgres import PostgresStore
from tests.conftest import execute
from tests.store.test_history_days import ahead, ended, partition_of
from tests.store.test_history_days import days as days
from tests.store.verbs import claim, claim_one, fail, message, record, send, send_one, succeed
from tests.support import Sql

week_s = 7 * 86_400.0
tables = ("steps", "attempts", "dedups", "decisions", "budgets")


async def prune(store: PostgresStore, keep_s: float = week_s, *, partly: bool | None = None) -> Progress:
    done = Progress()
    async for progress in pruning.prune(store, keep_s, partly=partly):
        done = progress
    return done


async def laden(store: PostgresStore, *, dedup: str | None = None) -> int:
    """A job with a row in every table, that has failed."""
    job_id = await send_one(store, dedup=dedup or f"d{datetime.now(UTC).timestamp()}")
    job = await claim_one(store)
    owner = Sender(job.id, job.fence)
    await record(store, job, "s#0", "1")
    await store.open_decision(owner, StepMark("decide#0"), NewQuestion("?", ("yes", "no")))
    await store.open_budget(owner, Budget(jobs=10))
    assert await fail(store, job) == {job_id}
    return job_id


async def kept(store: PostgresStore, sql: Sql, job_id: int) -> set[str]:
    """The tables that hold something of the job."""
    found = set()
    for table, column in (
        ("jobs", "id"),
        ("history", "id"),
        *((t, "id" if t == "budgets" else "job_id") for t in tables),
    ):
        text = f"""select count(*) from "{store.schema}".{table} where {column} = $1"""
        if await sql.value(text, job_id):
            found.add(table)
    return found


async def partitions(store: PostgresStore, sql: Sql) -> set[str]:
    text = "select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhparent = $1::text::regclass"
    return {row["relname"] for row in await sql.rows(text, f'"{store.schema}".history')}


async def test_what_ended_within_the_keeping_time_stays(days: PostgresStore, sql: Sql) -> None:
    job_id = await laden(days)
    await ahead(days, 6.9)
    await days.ensure_days(7)
    before = await partitions(days, sql)
    assert await prune(days) == Progress()
    assert await prune(days, partly=True) == Progress()
    assert await kept(days, sql, job_id) == {"history", *tables}
    assert await partitions(days, sql) == before


async def test_a_day_that_is_due_leaves_with_all_that_was_kept_of_its_jobs(days: PostgresStore, sql: Sql) -> None:
    job_ids = [await laden(days), await ended(days), await laden(days), await ended(days)]
    (day,) = {await partition_of(days, sql, job_id) for job_id in job_ids}
    await ahead(days, 9)
    await days.ensure_days(7)
    young_id = await laden(days)
    done = await prune(days)
    assert done.jobs == 4
    assert done.days >= 1
    assert [await kept(days, sql, job_id) for job_id in job_ids] == [set()] * 4
    assert day not in await partitions(days, sql)
    assert await kept(days, sql, young_id) == {"history", *tables}
    assert await prune(days) == Progress()


async def test_a_dedup_key_is_free_again_once_its_job_was_pruned(days: PostgresStore) -> None:
    first_id = await laden(days, dedup="order-17")
    assert await send(days, message(dedup="order-17")) == [first_id]
    await ahead(days, 9)
    await prune(days)
    (second_id,) = await send(days, message(dedup="order-17"))
    assert second_id != first_id
    assert await days.was_issued(first_id)


async def test_jobs_in_the_default_partition_leave_one_by_one(days: PostgresStore, sql: Sql) -> None:
    await ahead(days, 30)
    old_ids = [await ended(days), await laden(days)]
    await ahead(days, 36)
    young_id = await ended(days)
    assert await partition_of(days, sql, old_ids[0]) == await partition_of(days, sql, young_id) == "history_default"
    await ahead(days, 38)
    assert (await prune(days)).jobs == 2
    assert [await kept(days, sql, job_id) for job_id in (*old_ids, young_id)] == [set(), set(), {"history"}]
    assert "history_default" in await partitions(days, sql)


async def test_of_a_day_that_is_partly_due_that_part_leaves_when_asked(days: PostgresStore, sql: Sql) -> None:
    noon = datetime.now(UTC).replace(hour=12, minute=0) + timedelta(days=1)
    at_noon = (noon - datetime.now(UTC)) / timedelta(days=1)
    await ahead(days, at_noon)
    old_id = await laden(days)
    await ahead(days, at_noon + 0.2)
    young_id = await laden(days)
    await ahead(days, at_noon + 7.1)
    assert not (await prune(days, partly=False)).jobs
    assert (await prune(days, partly=True)).jobs == 1
    assert [await kept(days, sql, job_id) for job_id in (old_id, young_id)] == [set(), {"history", *tables}]


async def test_who_keeps_for_less_than_two_days_does_not_wait_for_the_end_of_the_day(
    days: PostgresStore, sql: Sql
) -> None:
    job_id = await laden(days)
    await ahead(days, 0.05)  # an hour and 12 minutes
    assert not (await prune(days, 2 * 3600)).jobs
    assert (await prune(days, 3600)).jobs == 1
    assert not await kept(days, sql, job_id)


async def test_a_job_that_a_live_job_waits_for_stays_and_its_neighbours_go(days: PostgresStore, sql: Sql) -> None:
    before_id, awaited_id, after_id = await ended(days), await laden(days), await ended(days)
    (asker_id,) = await send(days, message("asker"))
    asker = await claim_one(days, "asker")
    await execute(  # nothing in the runtime leaves this behind; were it ever so, the answer must still be there
        days.dsn,
        f"""insert into "{days.schema}".steps(job_id, step, kind, fence, done, child)"""
        f" values ({asker_id}, 'ask:a#0', 'ask', {asker.fence}, false, {awaited_id})",
    )
    await ahead(days, 9)
    assert (await prune(days)).jobs == 2
    assert await kept(days, sql, awaited_id) == {"history", *tables}
    assert [await kept(days, sql, job_id) for job_id in (before_id, after_id)] == [set(), set()]
    assert await partition_of(days, sql, awaited_id) in await partitions(days, sql)
    await succeed(days, asker)
    assert (await prune(days)).jobs == 1  # an ended job's wait keeps nothing
    assert not await kept(days, sql, awaited_id)


async def test_a_budget_stays_while_live_jobs_pay_from_it(days: PostgresStore, sql: Sql) -> None:
    (root_id,) = await send(days, message())
    root = await claim_one(days)
    await days.open_budget(Sender(root.id, root.fence), Budget(jobs=10))
    inner_job = replace(message("inner"), step=StepMark("send:inner#0"))
    (inner_sent,) = await days.send([inner_job], sender=Sender(root.id, root.fence))
    inner = await claim_one(days, "inner")
    assert inner.account == root_id
    await days.open_budget(Sender(inner.id, inner.fence), Budget(jobs=5))
    leaf_job = replace(message("leaf"), step=StepMark("send:leaf#0"))
    (leaf_sent,) = await days.send([leaf_job], sender=Sender(inner.id, inner.fence))
    await succeed(days, root, inner)
    await ahead(days, 9)
    assert not (await prune(days)).jobs
    assert {"budgets"} < await kept(days, sql, root_id)
    assert {"budgets"} < await kept(days, sql, inner_sent.id)
    await succeed(days, await claim_one(days, "leaf"))
    while (await prune(days)).jobs:  # the inner one first, it holds the outer
        pass
    assert [await kept(days, sql, job_id) for job_id in (root_id, inner_sent.id)] == [set(), set()]
    assert await kept(days, sql, leaf_sent.id) == {"history"}


async def test_what_live_jobs_have_behind_them_is_never_touched(days: PostgresStore, sql: Sql) -> None:
    (live_id,) = await send(days, message("live", "k", dedup="once"))
    job = await claim_one(days, "live")
    owner = Sender(job.id, job.fence)
    await record(days, job, "s#0", "1")
    await days.open_decision(owner, StepMark("decide#0"), NewQuestion("?", ("yes", "no")))
    await days.open_budget(owner, Budget(jobs=10))
    await execute(days.dsn, f"""insert into "{days.schema}".states(agent, key, value) values ('live', 'k', '1')""")
    await ended(days)
    await ahead(days, 30)
    assert (await prune(days)).jobs == 1
    assert await kept(days, sql, live_id) == {"jobs", "steps", "dedups", "decisions", "budgets"}
    assert await sql.value(f"""select count(*) from "{days.schema}".states""") == 1


async def test_a_batch_is_bounded_by_jobs_and_by_their_steps(days: PostgresStore, sql: Sql) -> None:
    job_ids = await send(days, *(message() for _ in range(7)))
    jobs = await claim(days)
    await succeed(days, *jobs)
    text = f"""insert into "{days.schema}".steps(job_id, step, fence) select i, 's#' || n, 1
                 from unnest($1::bigint[]) i, generate_series(1, 10) n"""
    await sql.run(text, job_ids)
    await ahead(days, 9)
    done = await days.prune(week_s, 25, partly=False)
    assert done is not None
    assert done.removed == 3  # 11 rows each: the third begins below 25
    done = await days.prune(week_s, 2, partly=False, mark=done.mark)
    assert done is not None
    assert done.removed == 1  # two are looked at; the first has more than two rows
    assert (await prune(days)).jobs == 3
    assert not await sql.value(f"""select count(*) from "{days.schema}".steps""")


async def test_two_that_prune_at_once_do_it_once(
    days: PostgresStore, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "batch_max", 5)
    job_ids = await send(days, *(message(dedup=str(n)) for n in range(40)))
    await succeed(days, *(await claim(days)))
    await ahead(days, 9)
    other = days.twin(30.0)

    async def until_done(store: PostgresStore) -> int:
        jobs = 0
        while True:
            done = await prune(store)
            jobs += done.jobs
            if not done.busy:
                return jobs
            await asyncio.sleep(0.01)

    try:
        assert sum(await asyncio.gather(until_done(days), until_done(other))) == 40
    finally:
        await other.close()
    assert not await sql.value(f"""select count(*) from "{days.schema}".dedups where job_id = any($1)""", job_ids)
    assert not await sql.value(f"""select count(*) from "{days.schema}".history""")


async def test_a_day_that_somebody_reads_is_dropped_the_next_time(days: PostgresStore, sql: Sql) -> None:
    plain_id = await ended(days)
    day = await partition_of(days, sql, plain_id)
    await ahead(days, 9)
    reading = sql.connection.transaction()
    await reading.start()
    await sql.value(f"""select count(*) from "{days.schema}".history""")
    began = asyncio.get_running_loop().time()
    assert not (await prune(days)).jobs
    assert asyncio.get_running_loop().time() - began < 10
    await reading.rollback()
    assert day in await partitions(days, sql)
    assert (await prune(days)).jobs == 1
    assert day not in await partitions(days, sql)


async def test_a_role_that_does_not_own_the_days_removes_their_jobs_one_by_one(days: PostgresStore, sql: Sql) -> None:
    plain_id, laden_id = await ended(days), await laden(days)
    day = await partition_of(days, sql, plain_id)
    await ahead(days, 9)
    role = f"guest_{days.schema}"
    await sql.run(f"create role \"{role}\" login password 'guest'")
    try:
        await sql.run(f'grant usage on schema "{days.schema}" to "{role}"')
        await sql.run(f'grant all on all tables in schema "{days.schema}" to "{role}"')
        parts = urlsplit(days.dsn)
        guest = PostgresStore(
            parts._replace(netloc=f"{role}:guest@{parts.netloc.rpartition('@')[2]}").geturl(), days.schema
        )
        try:
            assert (await prune(guest)).jobs == 2
        finally:
            await guest.close()
    finally:
        await sql.run(f'drop owned by "{role}"')
        await sql.run(f'drop role "{role}"')
    assert day in await partitions(days, sql)
    assert [await kept(days, sql, job_id) for job_id in (plain_id, laden_id)] == [set(), set()]


async def test_a_job_that_is_being_retried_is_left_alone(days: PostgresStore, sql: Sql) -> None:
    job_id = await laden(days)
    await ahead(days, 9)
    retrying = sql.connection.transaction()
    await retrying.start()
    assert await sql.value(f"""select "{days.schema}".retry($1, null)""", job_id) == "ready"
    assert await prune(days) == Progress()  # nor is its day dropped
    await retrying.rollback()
    assert await kept(days, sql, job_id) == {"history", *tables}
    assert await days.retry(job_id) == "ready"
    await prune(days)
    assert {"jobs", "steps"} < await kept(days, sql, job_id)
    again = await claim_one(days)
    assert "s#0" in again.steps


async def test_an_ask_that_finds_its_job_pruned_hears_that_it_has_expired(days: PostgresStore) -> None:
    old_id = await ended(days)
    await ahead(days, 9)
    await prune(days)
    await send(days, message("asker"))
    asker = await claim_one(days, "asker")
    owner = Sender(asker.id, asker.fence)
    assert await days.await_job(owner, StepMark("result#0"), old_id, None) is None
    # A dedup key that was read just before its job was pruned.
    text = f"""insert into "{days.schema}".dedups(agent, dedup, job_id) values ('a', 'gone', {old_id})"""
    await execute(days.dsn, text)
    asking = replace(message("a", dedup="gone"), step=StepMark("ask:a#0"), asks=True)
    (sent,) = await days.send([asking], sender=owner)
    assert sent.id == old_id
    ((_, _, state),) = await days.answers([(asker.id, "ask:a#0")])
    assert state.failure is not None
    assert '"expired"' in state.failure
