"""C15 (lease): a blocking call in the event loop starves the heartbeat, the job runs twice and its first result is thrown away.

Here heartbeats come from a thread of their own. The loop that blocks reads the answer to its last claim late, too: what that
answer grants may be over by then, and must not be started.
"""

from __future__ import annotations

import signal
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

import agentrt
from tests.conftest import Start
from tests.support import Sql, eventually

pytestmark = pytest.mark.case
ledger = str(Path(__file__).parent / "ledger.py")
source = """
import asyncio, os, time
from pathlib import Path
from agentrt import agent
from ledger import note, quick

@agent(retry=quick)
async def spin(seconds: float) -> str:
    note("start")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    return "spun"

@agent(retry=quick)
async def block_when_told(file: str, seconds: float) -> str:
    note("start")
    while not Path(file).exists():
        await asyncio.sleep(0.01)
    note("blocks")
    time.sleep(seconds)
    return "blocked"
"""


@pytest.mark.parametrize(("agent", "result"), [("block", "blocked"), ("spin", "spun")])
async def test_an_agent_that_blocks_the_loop_for_many_leases_keeps_its_lease_and_those_beside_it(
    start: Start, client: agentrt.Client, sql: Sql, agent: str, result: str
) -> None:
    options = ("run", ledger, "agents.py", "--lease", "2", "--poll", "600")
    busy = start(*options, source=source, name="busy")
    beside = [await agentrt.to("nap").send(seconds=0.5) for _ in range(10)]
    await busy.noted("start", 10)
    blocking = await agentrt.to(agent).send(seconds=7)
    await busy.noted("start", job=blocking.id)
    idle = start(*options, name="idle")
    await idle.until("supervisor.started")

    assert await blocking.result(timeout_s=30) == result
    for job in beside:
        assert await job.result(timeout_s=10) == "rested"

    assert len(busy.notes("start")) == 11
    assert await sql.value("select count(*) from agentrt.attempts") == 0
    assert idle.events("jobs.swept") == []
    (stall,) = busy.events("loop.stalled", agent=agent, job_id=blocking.id)
    assert Path(stall["file"]).name == ("ledger.py" if agent == "block" else "agents.py")
    assert stall["line"] > 1


async def test_a_job_whose_lease_ran_out_while_the_loop_was_blocked_is_not_started_late(
    start: Start, client: agentrt.Client, sql: Sql, database: str, tmp_path: Path
) -> None:
    options = ("run", ledger, "agents.py", "--lease", "2", "--poll", "600")
    busy = start(*options, source=source, name="busy")
    gate = tmp_path / "gate"
    blocking = await agentrt.to("block_when_told").send(file=str(gate), seconds=6)
    await busy.noted("start", job=blocking.id)
    name = urlsplit(database).path[1:]
    waiting = "select count(*) from pg_stat_activity where datname = $1 and wait_event_type = 'Lock' and query like '%claim(%'"

    other = start(*options, name="other")
    await other.until("supervisor.started")
    active = """select count(*) from pg_stat_activity
                 where datname = $1 and state = 'active' and backend_type = 'client backend' and pid <> pg_backend_pid()"""

    async def stopped_between_statements() -> bool:
        """In the middle of one it would keep its locks, or claim the job itself."""
        other.signal(signal.SIGSTOP)
        if await sql.value(active, name) == 0:
            return True
        other.signal(signal.SIGCONT)
        return False

    await eventually(stopped_between_statements)  # there in time to take the job over, and not before
    lock = await asyncpg.connect(database)
    try:
        holding = lock.transaction()
        await holding.start()
        await lock.execute("lock table agentrt.jobs in exclusive mode")
        await sql.run("select pg_notify('agentrt.ready', '')")
        await eventually(lambda: sql.value(waiting, name), what="the claim waits for the lock")
        gate.touch()
        await busy.noted("blocks")
        late = await lock.fetchval(
            """insert into agentrt.jobs(agent, payload) values ('instant', '{"n": 1}') returning id"""
        )
        await holding.commit()
    finally:
        await lock.close()
    assert (await sql.until(late, "running"))["fence"] == 1
    other.signal(signal.SIGCONT)
    await sql.until(late, "succeeded")
    assert await blocking.result(timeout_s=30) == "blocked"
    await busy.until("job.lease_lost", job_id=late)
    assert await busy.stop() == 0

    starts = other.notes("start")
    assert [note["pid"] for note in starts if note["job"] == late] == [other.pid]
    assert len([note for note in starts if note["job"] == blocking.id]) == 1
