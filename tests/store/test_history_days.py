"""ensure_days: finished jobs lie in a partition a day, and one that finds none is kept all the same."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from agentrt.store.postgres import PostgresStore
from tests.conftest import Clock, execute
from tests.store.verbs import claim_one, others, send_one, state_of, succeed
from tests.support import Sql

day_s = 86_400.0
moved_clock = """
create table "{0}".ahead(by interval not null);
insert into "{0}".ahead values ('0');
create or replace function "{0}".agentrt_now() returns timestamptz language sql volatile as
 $$ select clock_timestamp() + by from "{0}".ahead $$;
"""


@pytest.fixture
async def days(bare: PostgresStore) -> PostgresStore:
    """A store in a schema of its own, whose clock is moved by `ahead`: its partitions are new."""
    await bare.migrate()
    await execute(bare.dsn, moved_clock.format(bare.schema))
    return bare


async def ahead(store: PostgresStore, days: float) -> None:
    await execute(store.dsn, f"""update "{store.schema}".ahead set by = interval '{days} days'""")


async def ended(store: PostgresStore) -> int:
    job_id = await send_one(store)
    await succeed(store, await claim_one(store))
    return job_id


async def partition_of(store: PostgresStore, sql: Sql, job_id: int) -> str:
    partition: str = await sql.value(
        f"""select c.relname from "{store.schema}".history h join pg_class c on c.oid = h.tableoid where h.id = $1""",
        job_id,
    )
    return partition


async def test_a_fresh_database_has_the_days_of_a_week(days: PostgresStore) -> None:
    assert await days.ensure_days(7) == 0
    assert await days.ensure_days(9) == 2
    assert await days.ensure_days(9) == 0


async def test_a_day_that_passes_brings_one_more(days: PostgresStore) -> None:
    for day in (1, 2, 3):
        await ahead(days, day)
        assert await days.ensure_days(7) == 1


async def test_a_finished_job_lies_in_the_partition_of_its_day(days: PostgresStore, sql: Sql) -> None:
    names = {f"history_{datetime.now(UTC) + timedelta(days=plus):%Y%m%d}" for plus in (2, 3)}
    await ahead(days, 2)
    assert await partition_of(days, sql, await ended(days)) in names


async def test_a_job_that_ends_on_a_day_without_partition_is_kept(days: PostgresStore, sql: Sql) -> None:
    await ahead(days, 30)
    job_id = await ended(days)
    assert await partition_of(days, sql, job_id) == "history_default"
    assert await days.ensure_days(2) == 2  # not the day whose jobs lie in the default partition already
    assert await state_of(days, job_id) == "succeeded"
    later_id = await ended(days)
    assert await state_of(days, later_id) == "succeeded"
    await ahead(days, 31)
    assert (await partition_of(days, sql, await ended(days))).startswith("history_2")


async def test_processes_that_make_days_at_the_same_time_make_each_once(days: PostgresStore) -> None:
    async with others(days, 5) as stores:
        made = await asyncio.gather(*(each.ensure_days(20) for each in stores if isinstance(each, PostgresStore)))
    assert sorted(made) == [0, 0, 0, 0, 13]


async def test_jobs_end_while_days_are_made(days: PostgresStore) -> None:
    async with others(days, 1) as (other,):

        async def end_some() -> list[int]:
            return [await ended(days) for _ in range(10)]

        job_ids, made = await asyncio.gather(end_some(), other.ensure_days(40))
    assert made == 33
    assert {await state_of(days, job_id) for job_id in job_ids} == {"succeeded"}


async def test_a_job_is_found_in_whatever_partition_it_lies(days: PostgresStore, clock: Clock) -> None:
    job_ids = []
    for day in (0, 1, 5, 100):
        await ahead(days, day)
        job_ids.append(await ended(days))
    results = await days.results(job_ids)
    assert sorted(result.id for result in results) == job_ids
