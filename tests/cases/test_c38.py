"""C38 (step): a result or an exception that cannot be serialised leaves the job stuck, or hides the real error."""

from __future__ import annotations

from pathlib import Path

import pytest

import agentrt
from tests.conftest import Start
from tests.support import Sql

pytestmark = pytest.mark.case
ledger = str(Path(__file__).parent / "ledger.py")
source = """
import socket, threading
from typing import Any
from agentrt import agent, step
from ledger import note, quick

class Unreadable(Exception):
    def __init__(self, file: Any) -> None:
        super().__init__("cannot read it", file)
        self.file = file

async def connect() -> Any:
    note("ran")
    return {"links": [socket.socket()]}

async def read() -> None:
    note("ran")
    raise Unreadable(open(__file__))

@agent(retry=quick)
async def step_with_a_socket() -> None:
    await step(connect)

@agent(retry=quick)
async def result_with_a_lock() -> Any:
    note("ran")
    return [threading.Lock()]

@agent(retry=quick)
async def error_with_a_file() -> None:
    await step(read)

@agent(retry=quick)
async def caught() -> str:
    try:
        await step(read)
    except Unreadable as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"
"""


@pytest.mark.parametrize(
    ("agent", "reason", "runs", "words"),
    [
        ("step_with_a_socket", "fatal", 1, ["step connect#0", "$.links[0]", "socket"]),
        ("result_with_a_lock", "unstorable", 1, ["result of result_with_a_lock", "lock"]),
        ("error_with_a_file", "error", 3, ["agents.Unreadable", "cannot read it"]),
    ],
)
async def test_the_job_fails_with_what_could_not_be_stored(
    start: Start, client: agentrt.Client, sql: Sql, agent: str, reason: str, runs: int, words: list[str]
) -> None:
    program = start("run", ledger, "agents.py", source=source)
    job = await agentrt.to(agent).send()

    with pytest.raises(agentrt.JobFailed) as failed:
        await job.result(timeout_s=20)

    assert failed.value.reason == reason
    assert [word for word in words if word not in str(failed.value)] == []
    assert len(program.notes("ran")) == runs
    assert await sql.value("select count(*) from agentrt.jobs") == 0


async def test_of_an_exception_with_an_open_file_class_text_and_traceback_are_kept_as_text(
    start: Start, client: agentrt.Client, sql: Sql
) -> None:
    program = start("run", ledger, "agents.py", source=source)

    job = await agentrt.to("caught").send()

    assert (await job.result(timeout_s=20)).startswith("Unreadable: ('cannot read it', <_io.TextIOWrapper")
    (kind, text, trace) = (
        await sql.rows(
            "select failure->>'kind' as k, failure->>'text' as t, failure->>'traceback' as b from agentrt.steps"
        )
    )[0].values()
    assert kind.endswith(".Unreadable")
    assert text.startswith("('cannot read it'")
    assert "raise Unreadable(open(__file__))" in trace
    assert len(program.notes("ran")) == 1
