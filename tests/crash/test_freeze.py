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


stepping = """
import asyncio, time
from pathlib import Path
import agentrt
from agentrt import agent, current, step
from ledger import note, quick

async def draw(gate: str) -> str:
    note("drawn")
    while current().attempt == 1 and Path(gate).exists():
        time.sleep(0.01)
    return f"drawn by attempt {current().attempt}"

@agent
async def told(text: str) -> None:
    pass

@agent(retry=quick)
async def stepping(gate: str) -> str:
    drawn = await step(draw, gate)
    await told.send(drawn)
    return drawn
"""


async def test_a_step_and_a_message_of_a_supervisor_that_was_stopped_leave_no_trace_but_a_log_line(
    start: Start, client: agentrt.Client, sql: Sql, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    options = ("run", ledger, "agents.py", "--lease", str(lease_s), "--poll", "600")
    frozen = start(*options, source=stepping, name="frozen")
    job = await agentrt.to("stepping").send(gate=str(gate))
    await frozen.noted("drawn")
    current = start(*options, name="current")
    await current.until("supervisor.started")

    frozen.signal(signal.SIGSTOP)
    assert await job.result(timeout_s=30) == "drawn by attempt 2"
    tables = ("steps", "history", "attempts", "jobs")
    await sql.until_none_unfinished()
    before = [await sql.rows(f"select * from agentrt.{table} order by 1") for table in tables]
    gate.unlink()
    frozen.signal(signal.SIGCONT)
    await frozen.until("job.lease_lost", job_id=job.id)
    assert await frozen.stop() == 0
    assert await current.stop() == 0

    assert [await sql.rows(f"select * from agentrt.{table} order by 1") for table in tables] == before
    assert [row["output"] for row in before[0] if row["step"] == "draw#0"] == ['"drawn by attempt 2"']
    assert sum(row["agent"] == "told" for row in before[1]) == 1
