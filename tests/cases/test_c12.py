"""C12 (lease): the job of a killed process stays running for ever, and goes on holding its agent's only place under a limit.

Here the lease ends by the database's clock, any other supervisor takes the job back, and the place is counted anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import agentrt
from tests.conftest import Start
from tests.support import Sql

pytestmark = pytest.mark.case
lease_s = 2.0
ledger = str(Path(__file__).parent / "ledger.py")
source = """
import asyncio
from agentrt import agent, current
from ledger import note, quick

@agent(limit=1, retry=quick)
async def only(forever: bool) -> int:
    note("start")
    if forever and current().attempt == 1:
        await asyncio.sleep(600)
    return current().attempt
"""


async def test_the_job_of_a_killed_process_is_taken_over_and_its_place_under_the_limit_is_free(
    start: Start, client: agentrt.Client, sql: Sql
) -> None:
    options = ("run", ledger, "agents.py", "--lease", str(lease_s), "--poll", "600")
    killed = start(*options, source=source, name="killed")
    held = await agentrt.to("only").send(forever=True)
    await killed.noted("start")
    behind = await agentrt.to("only").send(forever=False)
    killed.kill()

    other = start(*options, name="other")
    assert await held.result(timeout_s=20) == 2
    assert await behind.result(timeout_s=20) == 1

    first, *taken_over = other.notes("start")
    assert (first["job"], first["pid"]) == (held.id, killed.pid)
    assert {(note["job"], note["pid"]) for note in taken_over} == {(held.id, other.pid), (behind.id, other.pid)}
    assert len(taken_over) == 2
    (lost,) = await sql.rows("select attempt, reason from agentrt.attempts")
    assert lost == {"attempt": 1, "reason": "crashed"}


async def test_an_idle_supervisor_takes_over_when_the_lease_ends_and_not_before(
    start: Start, client: agentrt.Client, sql: Sql
) -> None:
    options = ("run", ledger, "agents.py", "--lease", str(lease_s), "--poll", "600")
    killed = start(*options, source=source, name="killed")
    job = await agentrt.to("only").send(forever=True)
    await killed.noted("start")
    idle = start(*options, name="idle")
    await idle.until("supervisor.started")

    killed.kill()
    ends = await sql.value("select lease_expires from agentrt.all_jobs where id = $1", job.id)
    assert await job.result(timeout_s=20) == 2

    again = await sql.value("select claimed_at from agentrt.history where id = $1", job.id)
    assert 0 <= (again - ends).total_seconds() < 15
