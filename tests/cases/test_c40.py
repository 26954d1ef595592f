"""C40 (step): the link is lost between a step's commit and its answer, and the repeated insert meets its own row as a rival's."""

from __future__ import annotations

from pathlib import Path

import pytest

import agentrt
from tests.cases.proxy import Proxy
from tests.conftest import Start
from tests.support import Sql, eventually

pytestmark = pytest.mark.case
ledger = str(Path(__file__).parent / "ledger.py")
source = """
import asyncio, os
from pathlib import Path
from agentrt import agent, step
from ledger import note, quick

async def first() -> str:
    note("first")
    return "warm"

async def second(gate: str) -> str:
    note("second")
    while Path(gate).exists():
        await asyncio.sleep(0.01)
    return "mine"

@agent(retry=quick)
async def walk(gate: str) -> list[str]:
    said = [await step(first), await step(second, gate)]
    note("end")
    return said
"""


async def test_a_step_whose_answer_is_lost_is_taken_as_stored_and_the_job_goes_on(
    start: Start, client: agentrt.Client, sql: Sql, database: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    async with Proxy(database).running() as proxy:
        environ = {"AGENTRT_DATABASE_URL": proxy.dsn}
        program = start("run", ledger, "agents.py", "--poll", "600", source=source, environ=environ)
        job = await agentrt.to("walk").send(gate=str(gate))
        await program.noted("second")

        proxy.lost_answer_to = b"second#0"
        gate.unlink()

        async def stored() -> bool:
            return bool(await sql.value("select count(*) = 2 from agentrt.steps"))

        await eventually(stored, what="the step is committed")
        assert await sql.state(job.id) == "running"
        recording = [link for link in proxy.links if link.answers_lost]
        assert len(recording) == 1
        recording[0].cut()

        assert await job.result(timeout_s=20) == ["warm", "mine"]
        assert await program.stop() == 0

    assert [len(program.notes(kind)) for kind in ("first", "second", "end")] == [1, 1, 1]
    assert await sql.rows("select step, output::text as output, fence from agentrt.steps order by seq") == [
        {"step": "first#0", "output": '"warm"', "fence": 1},
        {"step": "second#0", "output": '"mine"', "fence": 1},
    ]
    assert await sql.value("select count(*) from agentrt.attempts") == 0
