"""SIGSTOP: a supervisor that is stopped for two leases comes back to a job that has ended without it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import agentrt
from tests.conftest import Start
from tests.support import Sql

lease_s = 2.0
ledger = str(Path(__file__).parent.parent / "cases" / "ledger.py")
source = f"""
import asyncio, time
from pathlib import Path
from agentrt import agent, current
from ledger import note, quick

@agent(retry=quick)
async def waiting(gate: str, blocking: bool) -> str:
    note("start")
    if current().attempt == 1:
        while Path(gate).exists():
            time.sleep(0.01) if blocking else await asyncio.sleep(0.01)
        note("late")
        return "late"
    await asyncio.sleep({2 * lease_s})
    note("end")
    return "current"
"""


@pytest.mark.parametrize("blocking", [True, False], ids=["its result comes late", "its heartbeat comes late"])
async def test_a_supervisor_stopped_for_two_leases_changes_nothing_when_it_goes_on(
    start: Start, client: agentrt.Client, sql: Sql, tmp_path: Path, blocking: bool
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    options = ("run", ledger, "agents.py", "--lease", str(lease_s), "--poll", "600")
    frozen = start(*options, source=source, name="frozen")
    job = await agentrt.to("waiting").send(gate=str(gate), blocking=blocking)
    await frozen.noted("start")
    current = start(*options, name="current")
    await current.until("supervisor.started")

    frozen.signal(signal.SIGSTOP)
    assert await job.result(timeout_s=30) == "current"  # one lease until it is taken over, two leases of work
    before = await sql.rows("select * from agentrt.history")
    if blocking:
        gate.unlink()  # the loop is not free before the result is made
    frozen.signal(signal.SIGCONT)
    (lost,) = await frozen.until("job.lease_lost", job_id=job.id)
    gate.unlink(missing_ok=True)
    assert await frozen.stop() == 0
    assert await current.stop() == 0

    assert lost["attempt"] == 1
    assert lost["agent"] == "waiting"
    assert len(frozen.notes("late")) == blocking
    assert await sql.rows("select * from agentrt.history") == before
    assert [(row["state"], row["attempt"], row["fence"]) for row in before] == [("succeeded", 2, 2)]
    assert await sql.rows("select attempt, reason from agentrt.attempts") == [{"attempt": 1, "reason": "crashed"}]
    assert await sql.value("select count(*) from agentrt.jobs") == 0
    assert frozen.events("job.succeeded") == []
    assert len(current.events("job.succeeded")) == 1
