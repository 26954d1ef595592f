"""An old snapshot: nobody may remove what claims leave behind, and with floors no claim walks over it."""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator

import asyncpg
import pytest

from agentrt.engine import floors as flooring
from agentrt.engine.floors import Floors
from agentrt.store.postgres import PostgresStore
from tests.store.verbs import here, policy, succeed, wanted
from tests.support import Sql

jobs_count = 60_000
batch = 200
fill = "insert into agentrt.jobs(agent) select 'a' from generate_series(1, $1::int)"


@pytest.fixture
async def old_snapshot(database: str) -> AsyncIterator[None]:
    """Somebody's transaction that began before, and stays."""
    connection = await asyncpg.connect(database)
    try:
        async with connection.transaction(isolation="repeatable_read"):
            await connection.fetchval("select count(*) from agentrt.jobs")
            yield
    finally:
        await connection.close()


async def claims_s(store: PostgresStore, floors: Floors) -> tuple[float, float]:
    """Run all jobs in batches, each after a claim of one; the medians of the first and of the last of those, in seconds."""
    times = []
    for _ in range(jobs_count // batch):
        asked = wanted(here, [(policy(), 1)], 1, floors=floors.of(["a"]))
        began = time.perf_counter()
        jobs = await store.claim(asked)
        times.append(time.perf_counter() - began)
        jobs += await store.claim(wanted(here, [(policy(), batch - 1)], batch - 1, floors=floors.of(["a"])))
        assert len(jobs) == batch
        floors.seen(jobs)
        assert await succeed(store, *jobs) == {job.id for job in jobs}
    return statistics.median(times[:50]), statistics.median(times[-50:])


@pytest.mark.parametrize("with_floors", [True, False])
async def test_a_claim_with_floors_costs_the_same_however_many_jobs_an_old_snapshot_keeps(
    store: PostgresStore, sql: Sql, old_snapshot: None, with_floors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them it costs more and more: so the snapshot does keep them."""
    monkeypatch.setattr(flooring, "period_s", 0.1)  # all of it takes a few seconds
    if not with_floors:
        monkeypatch.setattr(flooring, "worth_it", jobs_count + 1)
    await sql.run(fill, jobs_count)
    first, last = await claims_s(store, Floors(store, ["a"]))
    if with_floors:
        assert last < 3 * first + 0.002
    else:
        assert last > 1.5 * first
