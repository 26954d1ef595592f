"""C14 (lease): a healthy long job is taken for dead and run again, because rescue goes by elapsed time or because heartbeat
and lease do not fit together."""

from __future__ import annotations

from pathlib import Path

import pytest

import agentrt
from tests.conftest import Start
from tests.support import Program, Sql, eventually

pytestmark = pytest.mark.case
ledger = str(Path(__file__).parent / "ledger.py")
smallest_lease_s = 0.3
tries_s = 90.0


async def two_supervisors(start: Start, lease_s: float) -> tuple[Program, Program]:
    options = ("run", ledger, "--lease", str(lease_s), "--poll", "600")
    one, two = start(*options, name="one"), start(*options, name="two")
    await one.until("supervisor.started")
    await two.until("supervisor.started")
    return one, two


async def test_a_job_many_leases_long_is_started_once(start: Start, client: agentrt.Client, sql: Sql) -> None:
    one, two = await two_supervisors(start, lease_s=2)

    job = await agentrt.to("nap").send(seconds=6)
    assert await job.result(timeout_s=30) == "rested"

    assert len(one.notes("start")) == 1
    assert one.events("jobs.swept") + two.events("jobs.swept") == []
    assert await sql.value("select count(*) from agentrt.attempts") == 0


@pytest.mark.timeout(240)
async def test_the_smallest_lease_is_kept_by_its_heartbeats(start: Start, client: agentrt.Client, sql: Sql) -> None:
    await two_supervisors(start, smallest_lease_s)

    async def one_kept_it() -> bool:
        """A machine that stands still for 0.2 s may lose such a lease; the heartbeats must not."""
        job = await agentrt.to("nap").options(max_attempts=1).send(seconds=4 * smallest_lease_s)
        return bool((await sql.until(job.id, "succeeded", "failed"))["state"] == "succeeded")

    await eventually(one_kept_it, within_s=tries_s, what="a job that kept its lease")


@pytest.mark.parametrize(
    ("lease_s", "beat_s", "said"),
    [
        ("1", "0.5", "a third"),
        ("0.3", "0.2", "a third"),
        ("5", "0", "a third"),
        ("0.1", None, "lease_s is 0.1"),
        ("0", None, "lease_s is 0"),
    ],
)
async def test_a_lease_and_a_heartbeat_that_cannot_work_are_refused_at_the_start(
    start: Start, lease_s: str, beat_s: str | None, said: str
) -> None:
    beat = () if beat_s is None else ("--beat", beat_s)
    program = start("run", ledger, "--lease", lease_s, *beat)

    assert await program.ended() == 2
    assert said in program.log()
    assert "Traceback" not in program.log()
