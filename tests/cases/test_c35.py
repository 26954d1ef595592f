"""C35 (shutdown): a job claimed at the very moment of the stop is in no list: left claimed, or ended as failed."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

import agentrt
from tests.conftest import Start
from tests.support import Sql, eventually

pytestmark = pytest.mark.case
ledger = str(Path(__file__).parent / "ledger.py")
rounds = 5
job_count = 300
still_held = "select count(*) from agentrt.jobs where status = 'running' or supervisor is not null"


async def test_no_job_is_lost_left_claimed_or_charged_by_stops_at_random_moments(
    start: Start, client: agentrt.Client, sql: Sql
) -> None:
    options = ("run", ledger, "--slots", "4", "--lease", "300", "--drain", "0.05", "--poll", "600")
    nap = agentrt.to("nap")
    sent = await agentrt.send_many([nap.message(seconds=0.02) for _ in range(job_count)])
    stops = sorted(random.sample(range(1, job_count * 3 // 4), rounds))

    for round_, after in enumerate(stops):
        program = start(*options, name=f"round-{round_}")
        await program.until("supervisor.started")
        await program.noted("end", after)
        program.signal(signal.SIGTERM)
        assert await program.ended() == 0
        assert await sql.value(still_held) == 0
        assert program.events("supervisor.left_behind") == []

    last = start(*options, name="last")
    for job in sent:
        assert await job.result(timeout_s=60) == "rested"
    assert await last.stop() == 0
    assert await sql.rows("select state, attempt, count(*) from agentrt.history group by 1, 2") == [
        {"state": "succeeded", "attempt": 1, "count": job_count}
    ]
    assert await sql.value("select count(*) from agentrt.attempts") == 0


async def test_jobs_that_a_claim_brings_after_the_stop_has_begun_are_run_or_handed_back(
    start: Start, client: agentrt.Client, sql: Sql, database: str
) -> None:
    program = start("run", ledger, "--lease", "300", "--poll", "600")
    await program.until("supervisor.started")
    first = await agentrt.to("nap").send(seconds=0)  # once it has ended, the statements of the start are over too
    await first.result(timeout_s=30)
    await sql.run("delete from agentrt.history")
    waiting = "select count(*) from pg_stat_activity where datname = $1 and wait_event_type = 'Lock' and query like '%claim(%'"
    lock = await asyncpg.connect(database)
    try:
        async with lock.transaction():
            await lock.execute("lock table agentrt.jobs in share mode")
            await sql.run("select pg_notify('agentrt.ready', '')")
            await eventually(
                lambda: sql.value(waiting, urlsplit(database).path[1:]), what="the claim waits for the lock"
            )
            program.signal(signal.SIGTERM)
            await program.until("supervisor.draining")
            insert = """insert into agentrt.jobs(agent, payload) select 'nap', '{"seconds": 0.02}' from generate_series(1, 20)"""
            await lock.execute(insert)
    finally:
        await lock.close()

    assert await program.ended() == 0
    assert await sql.value(still_held) == 0
    states = await sql.rows("select state, reason, attempt_count from agentrt.all_jobs group by 1, 2, 3")
    assert states in (
        [{"state": "ready", "reason": None, "attempt_count": 0}],
        [{"state": "succeeded", "reason": None, "attempt_count": 1}],
    )
    assert await sql.value("select count(*) from agentrt.attempts") == 0
