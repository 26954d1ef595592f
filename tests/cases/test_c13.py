"""C13 (lease): a restarted worker with the name of the dead one passes for it: the orphaned job looks owned by a live worker.

Here the lease of the job decides; neither the host's name nor the supervisor's id keeps it.
"""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

import agentrt
from tests.conftest import Start
from tests.support import Sql

pytestmark = pytest.mark.case
ledger = str(Path(__file__).parent / "ledger.py")
source = """
import asyncio
from agentrt import agent, current
from ledger import note, quick

@agent(retry=quick)
async def first_hangs() -> int:
    note("start")
    if current().attempt == 1:
        await asyncio.sleep(600)
    return current().attempt
"""


async def test_the_job_of_a_dead_supervisor_is_recovered_although_one_with_its_id_lives(
    start: Start, client: agentrt.Client, sql: Sql
) -> None:
    identity = str(uuid4())
    options = ("run", ledger, "agents.py", "--lease", "1.5", "--poll", "600")
    named = {"AGENTRT_SUPERVISOR_ID": identity}
    dead = start(*options, source=source, name="dead", environ=named)
    orphan = await agentrt.to("first_hangs").send()
    await dead.noted("start")
    waiting = [await agentrt.to("instant").options(delay_s=600).send(n=n) for n in range(5)]

    dead.kill()
    await sql.run("update agentrt.jobs set run_after = now() where status = 'scheduled'")  # it ran none of them
    twin = start(*options, name="twin", environ=named)
    await twin.until("supervisor.started", supervisor=identity)

    assert await orphan.result(timeout_s=20) == 2
    for job in waiting:
        await job.result(timeout_s=20)
    assert await sql.value("select owner_id::text from agentrt.all_jobs where id = $1", orphan.id) == identity
    assert [row["reason"] for row in await sql.rows("select reason from agentrt.attempts")] == ["crashed"]
