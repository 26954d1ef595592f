"""C18 (lease): a holder that cannot reach the database is not stopped when its lease ends, and works on beside the second run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import agentrt
from tests.cases.proxy import Proxy
from tests.conftest import Start
from tests.support import Sql

pytestmark = pytest.mark.case
ledger = str(Path(__file__).parent / "ledger.py")
late_s = 1.0  # a machine that stands still may hold up the end of the one run and not the start of the next
source = """
import asyncio
from agentrt import agent, current
from ledger import note, quick

@agent(retry=quick)
async def ticking() -> str:
    while current().attempt == 1:
        note("tick")
        await asyncio.sleep(0.02)
    note("tick")
    await asyncio.sleep(1)
    note("end")
    return "ticked"
"""


class Severable(Proxy):
    """Once severed, what is connected hears nothing more, and nobody can connect."""

    severed = False

    def sever(self) -> None:
        self.severed = True
        for link in self.links:
            link.hold()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.severed:
            raise ConnectionRefusedError
        return await super()._connect()


async def test_a_holder_that_is_cut_off_stops_no_later_than_its_lease_and_the_next_run_begins_after_it(
    start: Start, client: agentrt.Client, sql: Sql, database: str
) -> None:
    options = ("run", ledger, "agents.py", "--lease", "3", "--poll", "600")
    proxy = Severable(database)
    async with proxy.running():
        cut_off = start(*options, source=source, name="cut-off", environ={"AGENTRT_DATABASE_URL": proxy.dsn})
        job = await agentrt.to("ticking").send()
        await cut_off.noted("tick")
        other = start(*options, name="other")
        await other.until("supervisor.started")

        proxy.sever()
        await cut_off.until("job.losing_lease", job_id=job.id)
        await other.noted("tick", attempt=2)
        assert await job.result(timeout_s=40) == "ticked"
        proxy.severed = False
        for link in proxy.links:
            link.cut()
        await cut_off.until("job.lease_lost", job_id=job.id)
        assert await cut_off.stop() == 0

    ticks = other.notes("tick")
    last = max(note["at"] for note in ticks if note["pid"] == cut_off.pid)
    first = min(note["at"] for note in ticks if note["pid"] == other.pid)
    assert last < first + late_s
    assert await sql.value("select attempt from agentrt.history where id = $1", job.id) == 2
    assert [note["pid"] for note in other.notes("end")] == [other.pid]
