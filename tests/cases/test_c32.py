"""C32 (shutdown): the grace runs out and the process ends with its claims left behind; each deploy costs them a whole lease."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import agentrt
from tests.conftest import Start
from tests.support import Sql

pytestmark = pytest.mark.case
ledger = str(Path(__file__).parent / "ledger.py")
lease_s = 300
soon_s = 10.0


@pytest.mark.parametrize("agent", ["nap", "thread"])
async def test_what_is_unfinished_when_the_grace_ends_is_handed_back_and_starts_elsewhere_at_once(
    start: Start, client: agentrt.Client, sql: Sql, agent: str
) -> None:
    options = ("run", ledger, "--lease", str(lease_s), "--drain", "1", "--poll", "600")
    ending = start(*options, name="ending")
    job = await agentrt.to(agent).send(seconds=120)
    await ending.noted("start")
    idle = start(*options, name="idle")
    await idle.until("supervisor.started")

    ending.signal(signal.SIGTERM)
    assert await ending.ended(within_s=20) == 0
    (begun,) = await idle.noted("start", pid=idle.pid, within_s=soon_s)

    assert begun["job"] == job.id
    assert begun["attempt"] == 1, "a shutdown costs no attempt"
    assert await sql.value("select count(*) from agentrt.attempts") == 0
    handed, released = ending.events("supervisor.hands_back"), ending.events("job.released")
    assert [entry["jobs"] for entry in handed] == [[job.id]]
    assert [entry["job_id"] for entry in released] == [job.id]


async def test_a_job_handed_back_waits_ready_when_nobody_else_is_there(
    start: Start, client: agentrt.Client, sql: Sql
) -> None:
    ending = start("run", ledger, "--lease", str(lease_s), "--drain", "0", "--poll", "600")
    jobs = [await agentrt.to("nap").send(seconds=120) for _ in range(20)]
    keyed = [await agentrt.to("nap")["k"].send(seconds=120) for _ in range(3)]
    await ending.noted("start", 21)

    assert await ending.stop() == 0

    states = [(await sql.job(job.id))["state"] for job in [*jobs, *keyed]]
    assert states == ["ready"] * 21 + ["blocked"] * 2
    assert await sql.value("select count(*) from agentrt.jobs where supervisor is not null or attempt > 0") == 0
    assert await sql.value("select count(*) from agentrt.leases") == 0
