"""C01, wake-up: the listening session ends and nobody listens any more, so that from then on only the poll finds jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Start
from tests.support import Sql, eventually

pytestmark = pytest.mark.case
agents = str(Path(__file__).parent / "ledger.py")
soon_s = 10.0  # the poll of these tests comes after 600 s

_listening = "select pid from pg_stat_activity where datname = current_database() and query like 'LISTEN%'"
_enqueue = "insert into agentrt.jobs(agent) values ('instant') returning id"


async def _listeners(sql: Sql) -> set[int]:
    return {row["pid"] for row in await sql.rows(_listening)}


async def test_a_listener_that_was_ended_is_rebuilt_and_wakes_the_claimer_as_before(sql: Sql, start: Start) -> None:
    program = start("run", agents, "--poll", "600")
    await program.until("supervisor.started")
    await sql.until(await sql.value(_enqueue), "succeeded", within_s=soon_s)

    (old,) = await _listeners(sql)
    await sql.run("select pg_terminate_backend($1)", old)

    async def rebuilt() -> bool:
        return bool(await _listeners(sql) - {old})

    await eventually(rebuilt, within_s=soon_s, what="a new LISTEN session")
    await sql.until(await sql.value(_enqueue), "succeeded", within_s=soon_s)

    assert len(await _listeners(sql)) == 1
    assert len(program.events("listener.lost", level="warning")) == 1
    assert {entry["level"] for entry in program.events()} <= {"info", "warning"}
    assert not program.events("claim.found_by_poll")
    assert await program.stop() == 0


async def test_a_job_that_comes_while_nobody_listens_is_found_when_listening_resumes(sql: Sql, start: Start) -> None:
    program = start("run", agents, "--poll", "600")
    await program.until("supervisor.started")

    for _ in range(10):

        async def one_listens() -> bool:
            return len(await _listeners(sql)) == 1

        await eventually(one_listens, within_s=soon_s)
        async with sql.connection.transaction():  # The notice goes out after the listener's end, before its successor.
            job_id = await sql.value(_enqueue)
            await sql.run(f"select pg_terminate_backend(pid) from ({_listening}) listener")
        await sql.until(job_id, "succeeded", within_s=soon_s)

    assert not program.events("claim.found_by_poll")
    assert await program.stop() == 0
