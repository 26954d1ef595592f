"""C65, command line: workers die, and the parent ends with code 0 or lives on without any: the service manager does nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.cases.own_server import OwnServer
from tests.conftest import Start
from tests.support import Program, Sql, eventually

pytestmark = pytest.mark.case
agents = str(Path(__file__).parent / "ledger.py")
_fine = """
from agentrt import agent
@agent
async def fine() -> int:
    return 1
"""


def _pids(program: Program) -> list[int]:
    return [child.pid for child in psutil.Process(program.pid).children()]


async def _live_rows(sql: Sql) -> set[int]:
    return {row["pid"] for row in await sql.rows("select pid from agentrt.supervisors where state = 'running'")}


async def _full_again(program: Program, sql: Sql, count: int, without: set[int]) -> None:
    """`count` children, none of them one of the dead, and the database shows exactly these."""

    async def full() -> bool:
        pids = set(_pids(program))
        return len(pids) == count and not pids & without and await _live_rows(sql) == pids

    await eventually(full, within_s=75, what=f"{count} new children that show in the database")


async def test_a_killed_worker_is_replaced_and_its_job_is_given_back_long_before_its_lease_ends(
    sql: Sql, start: Start
) -> None:
    program = start("run", agents, "--processes", "4", "--lease", "600", "--poll", "600")
    await program.until("child.ready", count=4)
    job_id = await sql.value(
        """insert into agentrt.jobs(agent, payload) values ('nap', '{"seconds": 3}') returning id"""
    )
    (begun,) = await program.noted("start", job=job_id)
    victim = begun["pid"]
    os.kill(victim, signal.SIGKILL)

    (died,) = await program.until("child.died")
    assert died["exit_code"] == -signal.SIGKILL
    await program.until("child.released")
    job = await sql.until(job_id, "succeeded", within_s=20)
    assert job["attempt_count"] == 2
    await _full_again(program, sql, 4, {victim})
    assert await program.stop() == 0


async def test_when_all_workers_are_killed_all_are_replaced_and_work(sql: Sql, start: Start) -> None:
    program = start("run", agents, "--processes", "4", "--poll", "600")
    await program.until("child.ready", count=4)
    dead = set(_pids(program))
    for pid in dead:
        os.kill(pid, signal.SIGKILL)
    await _full_again(program, sql, 4, dead)
    job_id = await sql.value("insert into agentrt.jobs(agent) values ('instant') returning id")
    await sql.until(job_id, "succeeded", within_s=20)
    assert await program.stop() == 0


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("import no_such_module", "No module named 'no_such_module'"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", '"exit_code":-9'),
        ("import os; os._exit(0)", '"exit_code":0'),
    ],
    ids=["the code does not import any more", "each is killed as it starts", "each ends as if all were done"],
)
async def test_when_workers_cannot_be_started_the_parent_ends_non_zero_and_says_why(
    tmp_path: Path, start: Start, broken: str, said: str
) -> None:
    program = start("run", "agents.py", "--processes", "2", source=_fine)
    await program.until("child.ready", count=2)
    (tmp_path / "agents.py").write_text(broken)
    for pid in _pids(program):
        os.kill(pid, signal.SIGKILL)

    assert await program.ended(within_s=60) != 0
    assert len(program.events("minder.gives_up", level="error")) == 1
    assert said in program.log()


async def test_a_gap_shows_in_the_status_while_a_worker_cannot_be_replaced(
    tmp_path: Path, database: str, sql: Sql, start: Start
) -> None:
    program = start("run", "agents.py", "--processes", "2", source=_fine)
    await program.until("child.ready", count=2)
    await _full_again(program, sql, 2, set())
    (tmp_path / "agents.py").write_text("import time; time.sleep(600)")  # its successor never becomes ready
    victim, other = _pids(program)
    os.kill(victim, signal.SIGKILL)

    async def gap_shows() -> bool:
        return await _live_rows(sql) == {other}

    await eventually(gap_shows, what="the database shows one worker")
    status = start("agents", "--json", name="status")
    assert await status.ended() == 0
    assert '"workers": 1' in status.log()
    assert await program.stop() == 0


@pytest.mark.timeout(240)
async def test_a_worker_that_dies_during_an_outage_is_replaced_after_it_however_long_it_was(
    own: OwnServer, start: Start
) -> None:
    options = ("--processes", "2", "--wait", "1", "--poll", "600")
    program = start("run", agents, *options, environ={"AGENTRT_DATABASE_URL": own.dsn})
    await program.until("child.ready", count=2)
    victim = _pids(program)[0]
    own.stop()
    os.kill(victim, signal.SIGKILL)
    await program.until("child.died", count=7, within_s=90)  # more than a worker that cannot start would be granted

    own.start()
    async with own.sql() as sql:
        await _full_again(program, sql, 2, {victim})
    assert await program.stop() == 0


async def test_a_stop_that_comes_while_workers_still_start_is_a_clean_stop(start: Start) -> None:
    program = start("run", agents, "--processes", "4")
    await program.until("child.started", count=4)
    assert await program.stop() == 0
