"""`agentrt prune`: retention by hand, and what is said of a job that is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrt.store.postgres import PostgresStore
from tests.cli.conftest import Cli, Here
from tests.conftest import Clock
from tests.store.verbs import claim_one, record, send_one, succeed
from tests.support import Sql

day_s = 86_400.0


async def ended(store: PostgresStore) -> int:
    job_id = await send_one(store)
    job = await claim_one(store)
    await record(store, job, "s#0", "1")
    await succeed(store, job)
    return job_id


async def test_prune_removes_what_is_past_its_keeping_time_and_says_how_much(
    store: PostgresStore, sql: Sql, clock: Clock, database: str, tmp_path: Path
) -> None:
    old_id = await ended(store)
    await clock.advance(8.5 * day_s)
    young_id = await ended(store)
    cli = Cli(tmp_path, {"AGENTRT_DATABASE_URL": database})
    done = await cli("prune")
    assert (done.code, done.err) == (0, ""), done
    assert done.out.startswith("pruned 1 jobs; dropped ")
    assert (await cli("show", young_id)).code == 0
    assert (await cli("prune", "--keep", "7d", "--json")).value == {"jobs": 0, "days_dropped": 0, "keep_s": 7 * day_s}
    await clock.advance(7200)
    assert (await cli("prune", "--keep", "1h", "--json")).value["jobs"] == 1
    for job_id in (old_id, young_id):
        for command in ("show", "why", "retry", "cancel"):
            gone = await cli(command, job_id)
            assert gone.code == 1
            assert gone.err.startswith(f"agentrt: Job {job_id} has expired"), gone
    never = await cli("show", 10**9)
    assert "There is no job 1000000000" in never.err
    assert await sql.value("select count(*) from agentrt.steps") == 0


@pytest.mark.parametrize("keep", ["1", "soon", "-5d", "", "99999d", "59s", "1e3"])
def test_a_keeping_time_that_cannot_be_is_refused(here: Here, keep: str) -> None:
    here("prune", "--keep", keep).refused(2)
