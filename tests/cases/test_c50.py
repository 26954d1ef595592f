"""C50, schedule: nobody tells that a delayed job is due: it starts at the next poll; a nearer one sent later is late."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Start
from tests.support import Sql

pytestmark = pytest.mark.case
agents = str(Path(__file__).parent / "ledger.py")
again = """
from agentrt import Retry, agent, current
@agent(retry=Retry(max_attempts=2, base_s=1.5, jitter=0))
async def second_time() -> int:
    if current().attempt == 1:
        raise ValueError("first")
    return 2
"""
late_s = 6.0  # the poll comes after 600 s
far_s = 8.0  # a nearer one that was started only then would be late

_delayed = """insert into agentrt.jobs(agent, payload, run_after, key)
values ('instant', json_build_object('n', $1::int), agentrt.agentrt_now() + make_interval(secs => $2), $3) returning id"""


async def test_a_delay_a_nearer_one_sent_later_and_a_backoff_start_when_they_are_due(sql: Sql, start: Start) -> None:
    program = start("run", agents, "agents.py", "--poll", "600", source=again)
    await program.until("supervisor.started")

    failing = await sql.value("insert into agentrt.jobs(agent) values ('second_time') returning id")
    far = await sql.value(_delayed, 1, far_s, None)
    await program.until("job.retried", job_id=failing)
    near = await sql.value(_delayed, 2, 0.7, None)
    keyed = await sql.value(_delayed, 3, 0.8, "box")
    await sql.until_none_unfinished()

    late = {
        row["id"]: row["late"]
        for row in await sql.rows(
            "select id, extract(epoch from claimed_at - run_after)::float8 as late from agentrt.history where state = 'succeeded'"
        )
    }
    assert sorted(late) == sorted([failing, far, near, keyed])
    assert all(0 <= seconds < late_s for seconds in late.values()), late
    backoff = await sql.value(
        "select extract(epoch from h.claimed_at - a.ended_at)::float8 from agentrt.history h"
        " join agentrt.attempts a on a.job_id = h.id where h.id = $1",
        failing,
    )
    assert 1.49 <= backoff < 1.5 + late_s
    assert not program.events("job.claimed", cause="poll")
    assert await program.stop() == 0


async def test_what_was_delayed_before_the_worker_started_is_due_in_time(sql: Sql, start: Start) -> None:
    overdue = await sql.value(_delayed, 1, 0.01, None)
    coming = await sql.value(_delayed, 2, 4.0, None)
    program = start("run", agents, "--poll", "600")
    await program.until("supervisor.started")
    await sql.until(overdue, "succeeded", within_s=20)
    job = await sql.until(coming, "succeeded")
    assert 0 <= (job["claimed_at"] - job["run_after"]).total_seconds() < late_s
    assert await program.stop() == 0
