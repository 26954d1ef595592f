"""C39 (step): a recorded value is looked up by name and arguments alone, so the second call in a loop gets the first one's."""

from __future__ import annotations

from pathlib import Path

import pytest

import agentrt
from tests.conftest import Start
from tests.support import Sql

pytestmark = pytest.mark.case
ledger = str(Path(__file__).parent / "ledger.py")
source = """
import os, signal
from agentrt import agent, current, step
from ledger import note, quick

async def poll(what: str) -> int:
    count = len(open(os.environ["LEDGER"]).readlines()) if os.path.exists(os.environ["LEDGER"]) else 0
    note("polled")
    return count + 1

@agent(retry=quick)
async def watch() -> list[int]:
    seen = []
    for turn in range(3):
        seen.append(await step(poll, "the same"))
        if turn == 1 and current().attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    return seen
"""


async def test_a_step_in_a_loop_has_a_record_for_each_turn(start: Start, client: agentrt.Client, sql: Sql) -> None:
    options = ("run", ledger, "agents.py", "--lease", "1", "--poll", "1")
    first = start(*options, source=source)
    job = await agentrt.to("watch").send()
    assert await first.ended() == -9
    start(*options)

    assert await job.result(timeout_s=20) == [1, 2, 3]
    assert [note["attempt"] for note in first.notes("polled")] == [1, 1, 2]
    rows = await sql.rows("select step, output::text as output, fence from agentrt.steps order by seq")
    assert [tuple(row.values()) for row in rows] == [("poll#0", "1", 1), ("poll#1", "2", 1), ("poll#2", "3", 2)]
