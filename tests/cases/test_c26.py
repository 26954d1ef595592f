"""C26, cancel: a job that sleeps hears of its cancel only at its next heartbeat or poll, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

import agentrt
from tests.conftest import Start
from tests.support import Sql

pytestmark = pytest.mark.case
soon_s = 10.0  # heartbeat 20 s, poll 600 s, the job itself 120 s


@pytest.mark.parametrize("name", ["nap", "thread"])
async def test_a_cancel_from_the_command_line_reaches_a_running_job_at_once(
    name: str, start: Start, client: agentrt.Client, sql: Sql
) -> None:
    worker = start("run", str(Path(__file__).parent / "ledger.py"), "--lease", "60", "--beat", "20", "--poll", "600")
    job = await agentrt.to(name).send(seconds=120.0)
    await worker.until("job.claimed")
    await sql.until(job.id, "running")

    command = start("cancel", str(job.id), "--reason", "too slow", name="cancel")
    assert await command.ended() == 0
    row = await sql.until(job.id, "cancelled", within_s=soon_s)
    assert row["last_error"] == "Cancelled: too slow"
    await worker.until("job.cancelled", job_id=job.id)
    assert not worker.notes("end")
    assert await worker.stop() == 0


async def test_a_cancel_reaches_a_job_whose_claim_was_on_its_way_when_it_was_asked_for(
    start: Start, client: agentrt.Client, sql: Sql
) -> None:
    worker = start("run", str(Path(__file__).parent / "ledger.py"), "--lease", "60", "--beat", "20", "--poll", "600")
    await worker.until("supervisor.started")
    for _ in range(50):
        job = await agentrt.to("nap").send(seconds=120.0)
        assert await job.cancel()  # ready, being claimed, or running
        await sql.until(job.id, "cancelled", within_s=soon_s)
