"""C17 (lease): a worker that lost its lease while it was stopped still writes its heartbeat, its step or its result.

The job then ends twice over, or the old owner steals the lease back. Here each write carries the fence and is refused.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import agentrt
from tests.conftest import Start
from tests.support import Sql, eventually

pytestmark = pytest.mark.case
ledger = str(Path(__file__).parent / "ledger.py")
source = """
import asyncio, os, time
from pathlib import Path
from agentrt import agent, current, step
from ledger import note, quick

async def mine() -> str:
    note("ran")
    return f"of attempt {current().attempt}"

async def until_gone(file: str, blocking: bool) -> None:
    while Path(file).exists():
        time.sleep(0.02) if blocking else await asyncio.sleep(0.02)

@agent(retry=quick)
async def contested(first: str, second: str, blocking: bool, late: str) -> str:
    note("start")
    attempt = current().attempt
    await until_gone(first if attempt == 1 else second, blocking and attempt == 1)
    note("goes on")
    if attempt == 1 and late == "result":
        return "late"
    said = await step(mine)
    note("end")
    return said
"""


@pytest.mark.parametrize(("blocking", "late"), [(True, "step"), (True, "result"), (False, "heartbeat")])
async def test_an_owner_that_was_stopped_beyond_its_lease_can_write_nothing(
    start: Start, client: agentrt.Client, sql: Sql, tmp_path: Path, blocking: bool, late: str
) -> None:
    gates = tmp_path / "first", tmp_path / "second"
    for gate in gates:
        gate.touch()
    options = ("run", ledger, "agents.py", "--lease", "2", "--poll", "600")
    frozen = start(*options, source=source, name="frozen")
    job = await agentrt.to("contested").send(first=str(gates[0]), second=str(gates[1]), blocking=blocking, late=late)
    await frozen.noted("start")
    current = start(*options, name="current")
    await current.until("supervisor.started")

    frozen.signal(signal.SIGSTOP)
    await current.noted("start", attempt=2)
    if blocking:
        gates[0].unlink()  # the first thing the old owner does when it goes on is to finish its work
    frozen.signal(signal.SIGCONT)
    (lost,) = await frozen.until("job.lease_lost", job_id=job.id)
    assert lost["attempt"] == 1

    owner, fence = (await sql.rows("select supervisor, fence from agentrt.jobs where id = $1", job.id))[0].values()
    assert fence == 2
    beats = await sql.value("select expires from agentrt.leases where job_id = $1 and fence = 2", job.id)

    async def beaten() -> bool:
        return bool(
            await sql.value(
                "select expires is distinct from $2 from agentrt.leases where job_id = $1 and fence = 2", job.id, beats
            )
        )

    await eventually(beaten, what="the lease of the current owner is renewed")
    assert await sql.value("select count(*) from agentrt.steps") == 0
    gates[1].unlink()
    assert await job.result(timeout_s=20) == "of attempt 2"

    (ended,) = await sql.rows("select state, attempt, fence, supervisor from agentrt.history")
    assert ended == {"state": "succeeded", "attempt": 2, "fence": 2, "supervisor": owner}
    assert [note["pid"] for note in current.notes("end")] == [current.pid]
    assert await sql.rows("select attempt, reason from agentrt.attempts") == [{"attempt": 1, "reason": "crashed"}]
    assert await sql.rows("select output::text, fence from agentrt.steps") == [{"output": '"of attempt 2"', "fence": 2}]
    assert frozen.events("job.succeeded") == []
    assert await frozen.stop() == 0
