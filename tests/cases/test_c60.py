"""C60, security: child processes get the database address with its password on their command lines, which everybody can read."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.cases.own_server import OwnServer
from tests.conftest import Start
from tests.support import Program, eventually

pytestmark = pytest.mark.case
agents = str(Path(__file__).parent / "ledger.py")
password = "quince walnut"
words = ("quince", "walnut")


def _children(program: Program) -> list[psutil.Process]:
    return psutil.Process(program.pid).children(recursive=True)


async def _two_ready(program: Program) -> None:
    await program.until("child.ready", count=2)
    await program.until("supervisor.started", count=2)


async def test_no_command_line_holds_the_password_that_the_environment_gave(own: OwnServer, start: Start) -> None:
    dsn = await own.require_password("c60", password)
    program = start("run", agents, "--processes", "2", environ={"AGENTRT_DATABASE_URL": dsn})
    await _two_ready(program)
    for process in (psutil.Process(program.pid), *_children(program)):
        assert not any(word in " ".join(process.cmdline()) for word in words), process.cmdline()

    killed = _children(program)[0]
    killed.kill()

    async def replaced() -> bool:
        return len(program.events("child.ready")) == 3

    await eventually(replaced)
    for process in _children(program):
        assert not any(word in " ".join(process.cmdline()) for word in words), process.cmdline()
    assert await program.stop() == 0


async def test_no_child_repeats_the_password_that_an_option_gave(own: OwnServer, start: Start) -> None:
    dsn = await own.require_password("c60", password)
    program = start("run", agents, "--processes", "2", "--database", dsn)
    await _two_ready(program)
    assert len(_children(program)) == 2
    for process in _children(program):
        assert not any(word in " ".join(process.cmdline()) for word in words), process.cmdline()
    async with own.sql() as sql:
        shown = await sql.rows("select application_name, query from pg_stat_activity where usename = 'c60'")
        assert shown
        assert not any(word in str(shown) for word in words)
    assert await program.stop() == 0
