"""C04, wake-up: a signal that falls between the empty look and the wait is lost, and now and then a job sits for a poll."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.conftest import Start
from tests.support import Sql

pytestmark = pytest.mark.case
agents = str(Path(__file__).parent / "ledger.py")


async def test_no_single_job_waits_for_the_poll_however_it_falls_into_an_idle_workers_look(sql: Sql, start: Start) -> None:
    programs = [start("run", agents, "--poll", "600", name=f"worker-{n}") for n in (1, 2)]
    for program in programs:
        await program.until("supervisor.started")

    for n in range(200):
        await sql.run("insert into agentrt.jobs(agent, payload) values ('instant', json_build_object('n', $1::int))", n)
        await asyncio.sleep(random.uniform(0, 0.02))  # the gaps are the case: each enqueue meets the loop elsewhere
    await sql.until_none_unfinished()

    waited = await sql.value("select max(extract(epoch from claimed_at - created_at))::float8 from agentrt.history")
    assert waited < 5
    starts = programs[0].notes("start")
    assert sorted(note["n"] for note in starts) == list(range(200))
    for program in programs:
        assert not program.events("job.claimed", cause="poll")
        assert await program.stop() == 0
