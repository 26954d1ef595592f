"""C03, wake-up: while the database is away the idle loops spin on its dead connection, or hammer it with calls that fail."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import psutil
import pytest

from tests.cases.own_server import OwnServer
from tests.cases.proxy import Proxy
from tests.conftest import Start
from tests.support import Program

pytestmark = pytest.mark.case
agents = str(Path(__file__).parent / "ledger.py")
outage_s = 8.0
cpu_share_max = 0.1
log_lines_max = 8
attempts_a_second_max = 5
_enqueue = "insert into agentrt.jobs(agent) values ('instant') returning id"


def _cpu_s(program: Program) -> float:
    times = psutil.Process(program.pid).cpu_times()
    return times.user + times.system


async def _sit_through_an_outage(own: OwnServer, program: Program) -> float:
    """Stop the database, watch the idle worker for `outage_s`, start it again. Returns the seconds that it was away."""
    async with own.sql() as sql:
        await sql.until(await sql.value(_enqueue), "succeeded", within_s=20)
    spent_s, lines = _cpu_s(program), len(program.events())
    began = time.monotonic()
    own.stop()
    while time.monotonic() - began < outage_s:
        assert _cpu_s(program) - spent_s < outage_s * cpu_share_max, program.log()[-3000:]
        assert program.process.poll() is None
        await asyncio.sleep(0.1)
    assert len(program.events("listener.down", level="warning")) == 1
    assert len(program.events()) - lines <= log_lines_max, program.log()[-3000:]
    own.start()
    away_s = time.monotonic() - began
    async with own.sql() as sql:
        await sql.until(await sql.value(_enqueue), "succeeded", within_s=15)
    await program.until("listener.up")
    assert not program.events("claim.found_by_poll")
    return away_s


async def test_an_idle_worker_sits_out_an_outage_quietly_and_works_again_by_itself(
    own: OwnServer, start: Start
) -> None:
    program = start("run", agents, "--poll", "600", environ={"AGENTRT_DATABASE_URL": own.dsn})
    await program.until("supervisor.started")
    await _sit_through_an_outage(own, program)
    assert await program.stop() == 0


async def test_an_idle_worker_knocks_seldom_while_the_database_is_away(own: OwnServer, start: Start) -> None:
    async with Proxy(own.dsn).running() as proxy:
        program = start("run", agents, "--poll", "600", environ={"AGENTRT_DATABASE_URL": proxy.dsn})
        await program.until("supervisor.started")
        away_s = await _sit_through_an_outage(own, program)
        assert 0 < proxy.refused < away_s * attempts_a_second_max
        assert await program.stop() == 0
