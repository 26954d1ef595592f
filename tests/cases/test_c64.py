"""C64, command line: the database is not up yet at the start: the process ends with a stack trace, or stays and does nothing."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from tests.cases.own_server import OwnServer
from tests.cases.proxy import Proxy
from tests.conftest import Start
from tests.support import Program

pytestmark = pytest.mark.case
agents = str(Path(__file__).parent / "ledger.py")
several = pytest.mark.parametrize("processes", ["1", "2"])


@pytest.fixture
def nobody() -> Iterator[str]:
    """The address of a port where nobody answers."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield f"postgresql://postgres@127.0.0.1:{unused.getsockname()[1]}/agentrt"


def _plain_lines(program: Program) -> list[str]:
    """What was said that is no log entry."""
    return [line for line in program.log().splitlines() if not line.startswith("{")]


@several
async def test_a_database_that_comes_up_late_is_waited_for_and_served(
    own: OwnServer, start: Start, processes: str
) -> None:
    own.stop()
    program = start("run", agents, "--processes", processes, environ={"AGENTRT_DATABASE_URL": own.dsn})
    await program.until("database.waiting", count=int(processes), level="warning")
    own.start()
    await program.until("supervisor.started", count=int(processes))
    async with own.sql() as sql:
        job_id = await sql.value("insert into agentrt.jobs(agent) values ('instant') returning id")
        await sql.until(job_id, "succeeded")
    assert _plain_lines(program) == []
    assert await program.stop() == 0


async def test_a_start_that_waits_for_the_database_ends_at_once_when_told_to(nobody: str, start: Start) -> None:
    program = start("run", agents, "--wait", "600", environ={"AGENTRT_DATABASE_URL": nobody})
    await program.until("database.waiting")
    assert await program.stop() == 0


async def test_a_database_that_never_comes_is_given_up_with_one_line_and_exit_code_3(nobody: str, start: Start) -> None:
    program = start("run", agents, "--wait", "1.5", environ={"AGENTRT_DATABASE_URL": nobody})
    assert await program.ended() == 3
    (reason,) = _plain_lines(program)
    assert re.fullmatch(r"agentrt: .*cannot be reached.*refused.*Gave up after 1\.5 s\.", reason)
    assert len(program.events("database.waiting")) == 1


async def test_the_wait_for_a_database_that_never_comes_is_not_repeated_by_the_minder(
    nobody: str, start: Start
) -> None:
    program = start("run", agents, "--processes", "2", "--wait", "1.5", environ={"AGENTRT_DATABASE_URL": nobody})
    assert await program.ended() == 3
    assert len(program.events("child.started")) == 2
    assert any("Gave up after 1.5 s." in line for line in _plain_lines(program))


# ------------------------------------------------------------------ an address that can never work is not waited for


async def _refused(own: OwnServer, start: Start, *, password: str, database: str, processes: str) -> str:
    """Start with an address of the server that it refuses; returns what was said beside the log."""
    dsn = await own.require_password("c64", "right")
    async with Proxy(dsn.replace("right", password)).running() as proxy:
        parts = urlsplit(proxy.dsn)
        address = urlunsplit((parts.scheme, parts.netloc, f"/{database}", parts.query, ""))
        program = start(
            "run", agents, "--wait", "600", "--processes", processes, environ={"AGENTRT_DATABASE_URL": address}
        )
        code = await program.ended()
    assert code == 2, program.log()
    assert not program.events("supervisor.started")
    return "\n".join(_plain_lines(program))


@several
async def test_a_wrong_password_ends_the_start_at_once_with_one_line_and_exit_code_2(
    own: OwnServer, start: Start, processes: str
) -> None:
    said = await _refused(own, start, password="wrong", database="agentrt", processes=processes)
    line = r'agentrt: The database refuses this address: password authentication failed for user "c64"\. Check --database .*'
    assert re.fullmatch(rf"({line}\n?){{1,{processes}}}", said)


@several
async def test_an_unknown_database_ends_the_start_at_once_with_one_line_and_exit_code_2(
    own: OwnServer, start: Start, processes: str
) -> None:
    said = await _refused(own, start, password="right", database="nowhere", processes=processes)
    line = r'agentrt: The database refuses this address: database "nowhere" does not exist\. Check --database .*'
    assert re.fullmatch(rf"({line}\n?){{1,{processes}}}", said)


async def test_an_unknown_host_is_waited_for_and_then_given_up_with_one_line_and_exit_code_3(start: Start) -> None:
    address = "postgresql://postgres@no-such-host.invalid/agentrt"
    program = start("run", agents, "--wait", "1.5", environ={"AGENTRT_DATABASE_URL": address})
    assert await program.ended(within_s=60) == 3
    (reason,) = _plain_lines(program)
    assert re.fullmatch(r"agentrt: .*cannot be reached.*Gave up after 1\.5 s\.", reason)
