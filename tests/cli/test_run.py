"""`agentrt run`: its options reach every process that it starts."""

from __future__ import annotations

from itertools import pairwise

import psutil

from tests.conftest import Start
from tests.support import Sql, eventually

source = "from agentrt import agent\n\n@agent\nasync def echo(x: int) -> int:\n    return x\n"
settings = {"--slots": "7", "--lease": "9.5", "--beat": "2.5", "--poll": "600.0", "--drain": "8.5", "--wait": "30.5"}


async def test_every_setting_reaches_the_children(start: Start, sql: Sql) -> None:
    given = [part for option in settings.items() for part in option]
    program = start("run", "agents.py", "--processes", "2", *given, source=source)
    await program.until("supervisor.started", count=2)
    children = psutil.Process(program.pid).children()
    assert len(children) == 2
    for child in children:
        assert set(settings.items()) <= set(pairwise(child.cmdline()))

    async def registered() -> bool:
        return [row["slots"] for row in await sql.rows("select slots from agentrt.supervisors")] == [7, 7]

    await eventually(registered)
    assert await program.stop() == 0
