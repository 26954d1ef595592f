"""C68, observability: a background loop dies of an error that nobody looks at; the process stays up and says it is well."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from agentrt import agent
from tests.cases.own_server import OwnServer
from tests.conftest import Start, supervising
from tests.support import Program, Sql, eventually

pytestmark = pytest.mark.case
agents = str(Path(__file__).parent / "ledger.py")
_functions = ("claim", "finish", "turn", "due", "sweep")
_nap = "insert into agentrt.jobs(agent, payload) values ('nap', json_build_object('seconds', $1::float8)) returning id"
_delayed = "insert into agentrt.jobs(agent, run_after) values ('instant', now() + '0.2 s') returning id"
_instant = "insert into agentrt.jobs(agent) values ('instant') returning id"


@agent
async def echo(x: int) -> int:
    return x


async def _rename(sql: Sql, *functions: str, back: bool = False) -> None:
    for name in functions:
        old, new = (f"broken_{name}", name) if back else (name, f"broken_{name}")
        await sql.run(f"alter function agentrt.{old} rename to {new}")


async def test_each_loop_that_dies_says_so_at_once_and_works_again_after_the_repair(sql: Sql, start: Start) -> None:
    program = start("run", agents, "--lease", "2", "--poll", "600")
    await program.until("supervisor.started")
    running = await sql.value(_nap, 2.0)
    await program.until("job.claimed", job_id=running)

    await _rename(sql, *_functions)
    delayed, waiting = await sql.value(_delayed), await sql.value(_instant)
    for loop in ("claimer", "committer", "due", "sweep"):
        (died, *_) = await program.until("loop.died", loop=loop, level="error")
        assert "broken" not in died["error"]
        assert "agentrt." in died["error"]
    await _rename(sql, *_functions, back=True)

    for job_id in (running, delayed, waiting, await sql.value(_delayed), await sql.value(_instant)):
        await sql.until(job_id, "succeeded")
    assert not program.events("claim.found_by_poll")
    assert await program.stop() == 0


async def test_a_loop_that_cannot_be_mended_ends_the_process_with_its_reason_and_non_zero(
    sql: Sql, start: Start
) -> None:
    program = start("run", agents, "--poll", "600")
    await program.until("supervisor.started")
    await _rename(sql, "due")
    await sql.value(_delayed)

    assert await program.ended(within_s=60) == 1
    assert len(program.events("loop.died", loop="due")) == 5
    (said,) = [line for line in program.log().splitlines() if line.startswith("agentrt: ")]
    assert said.startswith("agentrt: The due loop died 5 times")
    assert "agentrt.due" in said


async def test_health_is_not_ok_while_a_loop_is_dead_and_ok_again_after_the_repair(database: str, sql: Sql) -> None:
    async with supervising(database, echo, beat_s=0.2) as supervisor:

        async def well() -> bool:
            return bool(supervisor.health()["ok"])

        async def failed(loop: str) -> bool:
            health = supervisor.health()
            return not health["ok"] and list(health["failed_loops"]) == [loop]

        await eventually(well)
        await _rename(sql, "due")
        await sql.value("insert into agentrt.jobs(agent, run_after) values ('echo', now() + '0.1 s') returning id")
        await eventually(lambda: failed("due"))
        await _rename(sql, "due", back=True)
        await eventually(well)

        await sql.run("alter table agentrt.supervisors rename column beat_at to broken")
        await eventually(lambda: failed("beat"))
        await sql.run("alter table agentrt.supervisors rename column broken to beat_at")
        await eventually(well)


async def test_heartbeats_that_fail_for_a_moment_are_reported_and_cost_no_attempt(sql: Sql, start: Start) -> None:
    program = start("run", agents, "--lease", "6", "--poll", "600")
    await program.until("supervisor.started")
    job_id = await sql.value(_nap, 10.0)
    await program.until("job.claimed", job_id=job_id)
    await _rename(sql, "renew")
    await program.until("lease.beat_failed", job_id=job_id, level="warning")
    await _rename(sql, "renew", back=True)

    job = await sql.until(job_id, "succeeded")
    assert job["attempt_count"] == 1
    assert await program.stop() == 0


async def test_leases_are_kept_again_after_the_database_has_refused_the_password_for_a_while(
    own: OwnServer, start: Start
) -> None:
    right = uuid4().hex
    dsn = await own.require_password("c68", right)
    program = start("run", agents, "--lease", "6", "--poll", "600", environ={"AGENTRT_DATABASE_URL": dsn})
    await program.until("supervisor.started")
    async with own.sql() as sql:
        first = await sql.value(_nap, 10.0)
        await program.until("job.claimed", job_id=first)
        await own.require_password("c68", "another")
        await sql.run("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'c68'")
        await _heard_of_the_refusal(program)
        await own.require_password("c68", right)

        assert (await sql.until(first, "succeeded"))["attempt_count"] == 1
        second = await sql.value(_nap, 10.0)  # longer than its lease: only heartbeats can keep it
        assert (await sql.until(second, "succeeded"))["attempt_count"] == 1
    assert await program.stop() == 0


async def _heard_of_the_refusal(program: Program) -> None:
    """The heart and another loop have met it."""

    async def heard() -> bool:
        refusals = [entry for entry in program.events() if "authentication failed" in str(entry.get("error"))]
        return len({entry["event"] for entry in refusals}) > 1 or "Exception in thread" in program.log()

    await eventually(heard, what="the refusal in the log")
