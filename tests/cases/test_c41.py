"""C41 (step): a sleep that ends while no worker is up never wakes its job."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import agentrt
from tests.conftest import Start
from tests.support import Sql, eventually

pytestmark = pytest.mark.case
ledger = str(Path(__file__).parent / "ledger.py")
sleep_s = 3.0
source = f"""
import agentrt
from agentrt import agent, step
from ledger import note, quick

async def before() -> str:
    note("before")
    return "kept"

@agent(retry=quick)
async def dozer() -> str:
    kept = await step(before)
    await agentrt.sleep({sleep_s})
    note("woke")
    return kept
"""


@pytest.mark.parametrize("end", ["killed", "stopped"])
async def test_a_sleep_that_ended_while_nobody_was_up_ends_as_soon_as_somebody_is(
    start: Start, client: agentrt.Client, sql: Sql, end: str
) -> None:
    options = ("run", ledger, "agents.py", "--lease", "1", "--poll", "600", "--drain", "0")
    program = start(*options, source=source)
    job = await agentrt.to("dozer").send()

    async def asleep() -> bool:
        return bool(await sql.value("select count(*) = 1 from agentrt.steps where kind = 'sleep'"))

    await eventually(asleep, what="the sleep is stored")
    if end == "killed":
        program.signal(signal.SIGKILL)
        await program.ended()
    else:
        assert await program.stop() == 0

    async def over() -> bool:
        return bool(
            await sql.value(
                "select agentrt.agentrt_now() > due + interval '1 s' from agentrt.steps where due is not null"
            )
        )

    await eventually(over, what="the sleep has ended")
    assert program.notes("woke") == []
    again = start(*options)
    (began,) = await again.until("supervisor.started")

    assert await job.result(timeout_s=20) == "kept"
    assert [note["pid"] for note in again.notes("woke")] == [again.pid]
    assert len(again.notes("before")) == 1
    (woke,) = again.notes("woke")
    started = await sql.value("select $1::text::timestamptz", began["timestamp"])
    assert woke["at"] - started.timestamp() < 15
