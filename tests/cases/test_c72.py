"""C72, memory: claims slow down with the rows of finished jobs, or with many that are due in the future."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from agentrt.engine import pruning
from agentrt.store.postgres import PostgresStore
from tests.conftest import execute
from tests.store.verbs import here, message, policy, wanted
from tests.support import Sql, eventually

pytestmark = [pytest.mark.case, pytest.mark.timeout(300)]
day_s = 86_400.0
claims_count = 100
rounds_max = 4  # a busy machine may spoil one; a claim that is slow by nature is slow in all
old_count = 50_000
# By the database alone, without triggers: so it stands after weeks of work.
load = f"""
set session_replication_role = replica;
insert into agentrt.history(id, agent, state, priority, attempt, fence, run_after, created_at, finished_at, result)
select nextval('agentrt.jobs_id_seq'), 'a', 'succeeded', 5, 1, 1, at, at, at, '"what it returned"'
  from generate_series(1, 500000) n,
       lateral (select now() - case when n <= {old_count} then interval '3 days' else n * interval '0.1 s' end as at) t;
insert into agentrt.jobs(agent, status, run_after, payload)
select 'a', 'scheduled', now() + interval '1 day' + n * interval '1 s', '{{"text": "a small message"}}'
  from generate_series(1, 200000) n;
"""


@pytest.fixture
async def loaded(store: PostgresStore) -> PostgresStore:
    """500,000 finished jobs, a tenth of them older than a day, and 200,000 that are due in the future."""
    await execute(store.dsn, load, "vacuum analyze agentrt.jobs", "vacuum analyze agentrt.history")
    return store


@pytest.fixture
async def empty(empty_database: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(empty_database)
    await store.migrate()
    yield store
    await store.close()


async def _pick_up(store: PostgresStore) -> float:
    """What a job that has come costs: the look for those that are due, and the claim. Returns the seconds of both."""
    began = time.perf_counter()
    await store.due(500)
    jobs = await store.claim(wanted(here, [(policy("a"), 1)], 1))
    took = time.perf_counter() - began
    assert len(jobs) == 1
    return took


async def _p95s(loaded: PostgresStore, empty: PostgresStore) -> tuple[float, float]:
    """In turns, so that what else the machine does falls on both."""
    stores = (loaded, empty)
    times: tuple[list[float], list[float]] = ([], [])
    for store in stores:
        await store.send([message() for _ in range(claims_count)])
    for _ in range(claims_count):
        for store, took in zip(stores, times, strict=True):
            took.append(await _pick_up(store))
    one, other = (sorted(took)[claims_count * 95 // 100] for took in times)
    return one, other


async def _as_fast(loaded: PostgresStore, empty: PostgresStore) -> None:
    seen = []
    for _ in range(rounds_max):
        one, other = await _p95s(loaded, empty)
        seen.append((one, other))
        if one < 3 * other:
            return
    pytest.fail(f"p95 of claims, beside those of an empty table, in seconds: {seen}")


async def test_claims_are_as_fast_behind_finished_and_future_jobs_as_on_an_empty_table(
    loaded: PostgresStore, empty: PostgresStore
) -> None:
    await _as_fast(loaded, empty)


async def test_pruning_goes_in_batches_and_holds_up_no_claim(
    loaded: PostgresStore, empty: PostgresStore, sql: Sql
) -> None:
    batches: list[int] = []

    async def prune() -> None:
        store = loaded.twin(30.0)
        try:
            async for progress in pruning.prune(store, day_s):
                batches.append(progress.jobs)  # noqa: PERF401 - looked at meanwhile
        finally:
            await store.close()

    async def begun() -> bool:
        return len(batches) > 2

    task = asyncio.ensure_future(prune())
    try:
        await eventually(begun)
        await _as_fast(loaded, empty)
        assert not task.done(), "the claims were not measured beside the pruning"
        await task
    finally:
        task.cancel()
    assert max(after - before for before, after in zip([0, *batches], batches, strict=False)) <= pruning.batch_max
    assert batches[-1] == old_count
    assert await sql.value("select count(*) from agentrt.history") == 500_000 - old_count
    assert await sql.value("select count(*) from agentrt.history where finished_at < now() - interval '1 day'") == 0
