"""C24 (retry): SystemExit or another BaseException out of a job ends the worker, or leaves the job running for ever.

asyncio lets SystemExit and KeyboardInterrupt of any task break out of the event loop, so an agent's own subtask is the hard case.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import agentrt
from tests.conftest import Start
from tests.support import Sql

pytestmark = pytest.mark.case
ledger = str(Path(__file__).parent / "ledger.py")
source = """
import asyncio, sys
from agentrt import agent, step
from ledger import note, quick

class Odd(BaseException):
    pass

def leave(how: str) -> None:
    note("start", how=how)
    if how.startswith("exit"):
        sys.exit(int(how.removeprefix("exit ")))
    raise {"interrupt": KeyboardInterrupt, "odd": Odd, "generator": GeneratorExit}[how]

async def leaving(how: str) -> None:
    await asyncio.sleep(0)
    leave(how)

@agent(retry=quick)
async def itself(how: str) -> None:
    await leaving(how)

@agent(retry=quick)
async def awaited_task(how: str) -> None:
    await asyncio.create_task(leaving(how))

@agent(retry=quick)
async def task_group(how: str) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(leaving(how))
        group.create_task(asyncio.sleep(600))

@agent(retry=quick)
async def gathered(how: str) -> None:
    await asyncio.gather(asyncio.sleep(0.01), leaving(how))

@agent(retry=quick)
def plain(how: str) -> None:
    leave(how)

@agent(retry=quick)
async def stepping(how: str) -> None:
    await step(leaving, how)
"""
agents = ("itself", "awaited_task", "task_group", "gathered", "plain", "stepping")
kinds = {
    "exit 0": "SystemExit",
    "exit 1": "SystemExit",
    "interrupt": "KeyboardInterrupt",
    "odd": "agents.Odd",
    "generator": "GeneratorExit",
}


@pytest.mark.parametrize("agent", agents)
async def test_a_base_exception_is_a_failed_attempt_and_the_process_and_its_other_jobs_live_on(
    start: Start, client: agentrt.Client, sql: Sql, agent: str
) -> None:
    program = start("run", ledger, "agents.py", "--lease", "2", "--poll", "600", source=source)
    healthy = await agentrt.to("nap").send(seconds=3)
    await program.noted("start", agent="nap")

    jobs = {how: await agentrt.to(agent).send(how=how) for how in kinds}
    for how, job in jobs.items():
        with pytest.raises(agentrt.JobFailed) as failed:
            await job.result(timeout_s=20)
        assert failed.value.reason == "error", how
    assert await healthy.result(timeout_s=20) == "rested"

    for how, job in jobs.items():
        kind = "BaseExceptionGroup" if agent == "task_group" and how in ("odd", "generator") else kinds[how]
        rows = await sql.rows(
            "select attempt, reason, kind from agentrt.attempts where job_id = $1 order by fence", job.id
        )
        assert rows == [{"attempt": n, "reason": "error", "kind": kind} for n in (1, 2, 3)], how
        assert len([note for note in program.notes("start") if note["job"] == job.id]) == 3
    assert {note["pid"] for note in program.notes()} == {program.pid}
    assert await agentrt.to("instant").options(timeout_s=10).ask(n=1) == 1
    assert program.events("loop.died") == []
    assert await program.stop() == 0
