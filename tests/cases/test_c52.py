"""C52, connection: the database crashes and restarts under a working worker, which hangs or loses what ended meanwhile."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.cases.own_server import OwnServer
from tests.conftest import Start
from tests.support import Program, Sql, eventually

pytestmark = pytest.mark.case
agents = str(Path(__file__).parent / "ledger.py")
_nap = "insert into agentrt.jobs(agent, payload) values ('nap', json_build_object('seconds', $1::float8)) returning id"
_instant = "insert into agentrt.jobs(agent) values ('instant') returning id"


async def _all_slots_taken_and_a_queue(
    sql: Sql, program: Program, short_s: float, long_s: float
) -> tuple[set[int], set[int]]:
    """Five jobs that end during the outage and five that outlast it run, ten wait. Returns the ids of both fives."""
    short = {await sql.value(_nap, short_s) for _ in range(5)}
    long = {await sql.value(_nap, long_s) for _ in range(5)}
    await program.until("job.claimed", agent="nap", count=10)
    for _ in range(10):
        await sql.value(_instant)
    return short, long


async def _prompt_again(sql: Sql, program: Program) -> None:
    await program.until("database.back")
    await sql.until(await sql.value(_instant), "succeeded", within_s=20)
    assert not program.events("claim.found_by_poll")
    assert await program.stop() == 0


async def test_after_an_outage_shorter_than_the_lease_every_job_has_run_once(own: OwnServer, start: Start) -> None:
    options = ("--slots", "10", "--lease", "20", "--poll", "600")
    program = start("run", agents, *options, environ={"AGENTRT_DATABASE_URL": own.dsn})
    await program.until("supervisor.started")
    async with own.sql() as sql:
        short, _ = await _all_slots_taken_and_a_queue(sql, program, short_s=3, long_s=14)
    own.stop()

    async def five_ended() -> bool:
        return {note["job"] for note in program.notes("end")} == short

    await program.until("database.lost")
    await eventually(five_ended, what="the five short jobs have ended, the long ones not")
    await program.until("lease.beat_failed", count=10)  # those that ended keep their lease until that is stored
    own.start()

    async with own.sql() as sql:
        await sql.until_none_unfinished()
        ended = await sql.rows("select id, state, attempt from agentrt.history")
        assert len(ended) == 20
        assert {(row["state"], row["attempt"]) for row in ended} == {("succeeded", 1)}
        assert Counter(note["job"] for note in program.notes("start")) == Counter(row["id"] for row in ended)
        await _prompt_again(sql, program)


async def test_after_an_outage_longer_than_the_lease_every_job_ends_and_none_stays_running(
    own: OwnServer, start: Start
) -> None:
    options = ("--slots", "10", "--lease", "3", "--poll", "600")
    program = start("run", agents, *options, environ={"AGENTRT_DATABASE_URL": own.dsn})
    await program.until("supervisor.started")
    async with own.sql() as sql:
        short, long = await _all_slots_taken_and_a_queue(sql, program, short_s=3, long_s=10)
    own.stop()

    await program.until("database.lost")
    for job_id in long:
        await program.until("job.losing_lease", job_id=job_id)
    own.start()

    async with own.sql() as sql:
        await sql.until_none_unfinished(within_s=60)
        ended = {row["id"]: row for row in await sql.rows("select id, agent, state, attempt from agentrt.history")}
        assert len(ended) == 20
        assert {row["state"] for row in ended.values()} == {"succeeded"}
        assert all(ended[job_id]["attempt"] == 2 for job_id in long), ended
        assert all(row["attempt"] <= 2 for row in ended.values()), ended
        ends = Counter(note["job"] for note in program.notes("end"))
        assert {job_id: ends[job_id] for job_id in long} == dict.fromkeys(long, 1)  # the first run was stopped
        assert all(1 <= ends[job_id] <= ended[job_id]["attempt"] for job_id in short)
        await _prompt_again(sql, program)
