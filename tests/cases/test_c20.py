"""C20 (retry): the crash of a process does not count as an attempt, so one job that kills its process takes down one after another.

Here taking a job back counts an attempt, and the last one ends the job as failed with that reason.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import agentrt
from tests.conftest import Start
from tests.support import Sql

pytestmark = pytest.mark.case
ledger = str(Path(__file__).parent / "ledger.py")


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_job_that_kills_its_process_ends_as_crashed_and_the_others_succeed(
    start: Start, client: agentrt.Client, sql: Sql, processes: int
) -> None:
    if processes == 1:  # the outer service manager is played by the test
        options = ("run", ledger, "--lease", "1", "--poll", "600")
        program = start(*options)
    else:
        program = start("run", ledger, "--lease", "1", "--poll", "600", "--processes", str(processes))
    killer = await agentrt.to("suicide").options(max_attempts=3).send()
    others = [await agentrt.to("instant").send(n=n) for n in range(20)]
    # beside the killer: what runs in a process that dies loses an attempt, so it is given more than the killer has
    others += [await agentrt.to("nap").options(max_attempts=4).send(seconds=0.3) for _ in range(5)]
    for _ in range(3 if processes == 1 else 0):
        assert await program.ended() == -9
        program = start(*options)

    with pytest.raises(agentrt.JobFailed, match="Crashed") as failed:
        await killer.result(timeout_s=40)
    assert failed.value.reason == "crashed"
    for job in others:
        await job.result(timeout_s=20)

    starts = [note for note in program.notes("start") if note["job"] == killer.id]
    assert [note["attempt"] for note in starts] == [1, 2, 3]
    assert len({note["pid"] for note in starts}) == 3
    rows = await sql.rows("select attempt, reason from agentrt.attempts where job_id = $1 order by fence", killer.id)
    assert rows == [{"attempt": attempt, "reason": "crashed"} for attempt in (1, 2, 3)]
    assert (await sql.job(killer.id))["state"] == "failed"
    assert await program.stop() == 0
