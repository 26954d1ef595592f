"""C33 (shutdown): after Ctrl-C the process hangs, the more with another event loop or a job in a thread, and needs kill -9."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

import agentrt
from tests.conftest import Start
from tests.support import Sql, eventually

pytestmark = pytest.mark.case
ledger = str(Path(__file__).parent / "ledger.py")
soon_s = 10.0
# The agent's module decides which loop the command line gets: it is imported before the loop is made.
loops = {
    "uvloop": "import uvloop\nmade = uvloop.new_event_loop\n",
    "standard": "import asyncio, uvloop\nmade = uvloop.new_event_loop = asyncio.SelectorEventLoop\n",
}
source = """
import asyncio, time
from agentrt import agent
from ledger import note, quick

@agent(retry=quick)
async def which_loop() -> str:
    return type(asyncio.get_running_loop()).__module__.split(".")[0]

@agent(retry=quick)
async def shielded() -> None:
    note("start")
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            note("ignores its cancellation")
"""


@pytest.mark.parametrize("loop", ["uvloop", "standard"])
@pytest.mark.parametrize("agent", ["thread", "shielded"])
async def test_a_first_ctrl_c_drains_and_says_so_and_a_second_ends_the_process(
    start: Start, client: agentrt.Client, sql: Sql, loop: str, agent: str
) -> None:
    program = start("run", ledger, "agents.py", "--drain", "600", "--poll", "600", source=loops[loop] + source)
    used = await agentrt.to("which_loop").options(timeout_s=20).ask()
    assert used == ("uvloop" if loop == "uvloop" else "asyncio")
    arguments = {"seconds": 600} if agent == "thread" else {}
    job = await agentrt.to(agent).send(**arguments)
    await program.noted("start")

    program.signal(signal.SIGINT)
    (said,) = await program.until("supervisor.draining")
    assert said["running"] == 1
    assert "second signal" in said["again"]

    async def heard_again() -> bool:
        """Press again until it counts: one that follows at once on the first is taken for the same."""
        if not program.events("signal", effect="hand back at once"):
            program.signal(signal.SIGINT)
            return False
        return True

    await eventually(heard_again)
    told_at = time.monotonic()
    assert await program.ended() == 128 + signal.SIGINT
    assert time.monotonic() - told_at < soon_s
    assert "Traceback" not in program.log()
    row = await sql.job(job.id)
    if agent == "thread":
        assert (row["state"], row["attempt_count"]) == ("ready", 0)
    else:  # it never stops, so it cannot be handed back: its lease runs out
        assert row["state"] == "running"
        assert program.events("supervisor.left_behind", jobs=[job.id])
