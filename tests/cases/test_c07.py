"""C07, claim: during a rolling deploy an old worker, or its sweeper, takes a job of an agent that it does not know.

It must be left alone, without costing an attempt, until a process that knows it comes; and the log says so, once an agent.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import agentrt
from tests.conftest import Start
from tests.support import Sql, eventually

pytestmark = pytest.mark.case

old = """
from agentrt import agent

@agent
async def known() -> str:
    return "done"
"""
new = (
    old
    + """
import asyncio, os, agentrt
from agentrt import Retry

@agent(retry=Retry(max_attempts=3, base_s=0.1))
async def unknown(hold: bool) -> int:
    if hold and agentrt.current().attempt == 1:
        await asyncio.sleep(600)
    return os.getpid()
"""
)
options = ("--lease", "3", "--poll", "600")


@pytest.fixture
def modules(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(old)
    (tmp_path / "new.py").write_text(new)


async def test_a_job_of_an_unknown_agent_costs_no_attempt_until_a_process_that_knows_it_comes(
    modules: None, start: Start, client: agentrt.Client, sql: Sql
) -> None:
    worker = start("run", "old.py", *options, name="old")
    await worker.until("supervisor.started")
    job = await agentrt.to("unknown").send(hold=False)
    await agentrt.to("known").options(timeout_s=30).ask()  # the old worker has looked at what is there
    row = await sql.job(job.id)
    assert (row["state"], row["attempt_count"], row["fence"]) == ("ready", 0, 0)

    why = start("why", str(job.id), name="why")
    assert await why.ended() == 0
    assert "no worker knows agent 'unknown'" in " ".join(why.log().split())

    newer = start("run", "new.py", *options, name="new")
    assert await job.result(timeout_s=30) == newer.pid
    assert (await sql.job(job.id))["attempt_count"] == 1


async def test_a_sweeper_that_does_not_know_the_agent_gives_a_lapsed_job_back_and_never_discards_it(
    modules: None, start: Start, client: agentrt.Client, sql: Sql
) -> None:
    holder = start("run", "new.py", *options, name="holder")
    job = await agentrt.to("unknown").send(hold=True)
    await sql.until(job.id, "running")
    worker = start("run", "old.py", *options, name="old")
    await worker.until("supervisor.started")
    holder.kill()

    await worker.until("jobs.swept", made_ready=[job.id])
    await agentrt.to("known").options(timeout_s=30).ask()
    row = await sql.job(job.id)
    assert (row["state"], row["attempt_count"]) == ("ready", 1)

    newer = start("run", "new.py", *options, name="new")
    assert await job.result(timeout_s=30) == newer.pid
    assert (await sql.job(job.id))["attempt_count"] == 2
    assert not worker.events("job.claimed", job_id=job.id)


async def test_the_log_says_once_of_each_unknown_agent_how_many_of_its_jobs_are_left_alone(
    modules: None, start: Start, client: agentrt.Client, sql: Sql
) -> None:
    jobs = [await agentrt.to("unknown").send(hold=False) for _ in range(2)]
    worker = start("run", "old.py", "--lease", "3", "--poll", "0.2", name="old")  # it beats as often as it polls
    (said,) = await worker.until("agent.unknown")
    assert (said["agent"], said["jobs"]) == ("unknown", 2)

    jobs += [await agentrt.to(name).send(hold=False) for name in ("unknown", "another")]
    (said,) = await worker.until("agent.unknown", agent="another")
    assert said["jobs"] == 1
    for _ in range(3):
        beat_at = await sql.value("select beat_at from agentrt.supervisors")

        async def beaten(before: object = beat_at) -> bool:
            return bool(await sql.value("select beat_at > $1 from agentrt.supervisors", before))

        await eventually(beaten)
    assert [entry["agent"] for entry in worker.events("agent.unknown")] == ["unknown", "another"]
    rows = [await sql.job(job.id) for job in jobs]
    assert {(row["state"], row["attempt_count"], row["fence"]) for row in rows} == {("ready", 0, 0)}
    assert await worker.stop() == 0
