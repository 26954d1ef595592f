"""C36 (step): a stored result that is empty counts as none, so its step runs again on each replay."""

from __future__ import annotations

from pathlib import Path

import pytest

import agentrt
from tests.conftest import Start
from tests.support import Sql

pytestmark = pytest.mark.case
ledger = str(Path(__file__).parent / "ledger.py")
source = """
from typing import Any
from agentrt import agent, current, step
from ledger import note, quick

empty = {"none": None, "false": False, "zero": 0, "text": "", "list": [], "object": {}}

async def give(name: str) -> Any:
    note("ran", step=name)
    return empty[name]

def give_in_thread(name: str) -> Any:
    note("ran", step=f"{name} in a thread")
    return empty[name]

@agent(retry=quick)
async def collect() -> list[Any]:
    values = [await step(fn, name) for name in empty for fn in (give, give_in_thread)]
    note("values", values=values)
    if current().attempt == 1:
        raise RuntimeError("once")
    return values
"""


async def test_steps_that_return_nothing_much_run_once_and_replay_to_the_same(
    start: Start, client: agentrt.Client, sql: Sql
) -> None:
    program = start("run", ledger, "agents.py", source=source)
    job = await agentrt.to("collect").send()

    values: tuple[object, ...] = (None, False, 0, "", [], {})
    expected = [value for value in values for _ in range(2)]
    result = await job.result(timeout_s=20)

    assert [(type(value), value) for value in result] == [(type(value), value) for value in expected]
    assert [note["values"] for note in program.notes("values")] == [expected, expected]
    ran = [note["step"] for note in program.notes("ran")]
    assert len(ran) == len(set(ran)) == 12
    assert await sql.value("select count(*) from agentrt.steps where output is not null and done") == 12
