"""C31 (shutdown): the heartbeat stops when draining begins, so a long drain runs the job a second time elsewhere."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import agentrt
from tests.conftest import Start
from tests.support import Sql

pytestmark = pytest.mark.case
ledger = str(Path(__file__).parent / "ledger.py")


async def test_a_job_many_leases_long_is_finished_by_the_process_that_drains(
    start: Start, client: agentrt.Client, sql: Sql
) -> None:
    options = ("run", ledger, "--lease", "2", "--drain", "60", "--poll", "600")
    draining = start(*options, name="draining")
    job = await agentrt.to("nap").send(seconds=6)
    await draining.noted("start")
    idle = start(*options, name="idle")
    await idle.until("supervisor.started")

    draining.signal(signal.SIGTERM)
    assert await draining.ended() == 0
    assert await job.result(timeout_s=10) == "rested"

    assert [note["pid"] for note in idle.notes("start")] == [draining.pid]
    assert [note["pid"] for note in idle.notes("end")] == [draining.pid]
    assert await sql.value("select count(*) from agentrt.attempts") == 0
    assert idle.events("jobs.swept") == []
