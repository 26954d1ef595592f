"""C04, wake-up: a signal that falls between the empty look and the wait is lost, and now and then a job sits for a poll."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.conftest import Start
from tests.support import Sql, eventually

pytestmark = pytest.mark.case
agents = str(Path(__file__).parent / "ledger.py")
pairs = 100


@pytest.mark.parametrize("workers", [1, 2])
async def test_no_job_waits_for_the_poll_however_it_falls_into_an_idle_workers_look(
    sql: Sql, start: Start, workers: int
) -> None:
    programs = [start("run", agents, "--poll", "600", name=f"worker-{n}") for n in range(workers)]
    for program in programs:
        await program.until("supervisor.started")

    async def none_left() -> bool:
        return bool(await sql.value("select count(*) = 0 from agentrt.jobs"))

    for n in range(pairs):
        await _enqueue(sql, 2 * n)
        # The gap is the case: the second meets the look for the first elsewhere each time.
        await asyncio.sleep(random.uniform(0, 0.008))
        await _enqueue(sql, 2 * n + 1)
        await eventually(
            none_left, within_s=10, what="both jobs of a pair are done: no third comes to wake a worker for them"
        )

    assert sorted(note["n"] for note in programs[0].notes("start")) == list(range(2 * pairs))
    for program in programs:
        assert not program.events("job.claimed", cause="poll")
        assert await program.stop() == 0


async def _enqueue(sql: Sql, n: int) -> None:
    await sql.run("insert into agentrt.jobs(agent, payload) values ('instant', json_build_object('n', $1::int))", n)
