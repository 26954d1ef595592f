"""C20 (retry): a process's death is not counted as an attempt, so one job that kills its process takes down one after another.

Here taking a job back counts an attempt, and the last one ends the job as failed with that reason.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import agentrt
from tests.conftest import Start
from tests.support import Program, Sql

pytestmark = pytest.mark.case
ledger = str(Path(__file__).parent / "ledger.py")


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_job_that_kills_its_process_ends_as_crashed_after_its_attempts(
    start: Start, client: agentrt.Client, sql: Sql, processes: int
) -> None:
    killer = await agentrt.to("suicide").options(max_attempts=3).send()
    beside = [await agentrt.to("nap").options(max_attempts=4).send(seconds=0.3) for _ in range(5)]
    program = await outlive(start, processes, deaths=3)

    with pytest.raises(agentrt.JobFailed, match="Crashed") as failed:
        await killer.result(timeout_s=40)
    assert failed.value.reason == "crashed"
    for job in beside:
        await job.result(timeout_s=20)

    starts = [note for note in program.notes("start") if note["job"] == killer.id]
    assert [note["attempt"] for note in starts] == [1, 2, 3]
    assert len({note["pid"] for note in starts}) == 3
    rows = await sql.rows("select attempt, reason from agentrt.attempts where job_id = $1 order by fence", killer.id)
    assert rows == [{"attempt": attempt, "reason": "crashed"} for attempt in (1, 2, 3)]
    assert (await sql.job(killer.id))["state"] == "failed"
    assert await program.stop() == 0


@pytest.mark.parametrize("processes", [1, 2])
async def test_jobs_claimed_beside_a_killer_still_reach_success(
    start: Start, client: agentrt.Client, processes: int
) -> None:
    killer = await agentrt.to("suicide").options(max_attempts=3).send()
    beside = [await agentrt.to("instant").options(max_attempts=3).send(n=n) for n in range(20)]
    program = await outlive(start, processes, deaths=3)

    with pytest.raises(agentrt.JobFailed, match="Crashed"):
        await killer.result(timeout_s=40)
    assert [await job.result(timeout_s=20) for job in beside] == list(range(20))
    assert await program.stop() == 0


async def outlive(start: Start, processes: int, deaths: int) -> Program:
    """A runtime that is started again as often as it dies: by its minder, or by the test in the part of a service manager."""
    options = ("run", ledger, "--lease", "1", "--poll", "600", "--processes", str(processes))
    program = start(*options)
    for _ in range(deaths if processes == 1 else 0):
        assert await program.ended() == -signal.SIGKILL
        program = start(*options)
    return program
