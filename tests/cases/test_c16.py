"""C16 (lease): one failed heartbeat ends the heartbeat loop, or ends every running job although their leases are still good.

The heartbeat's connection is ended, its statement is held up, and it is refused for a while; the job goes on each time.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

import agentrt
from tests.conftest import Start
from tests.support import Program, Sql, eventually

pytestmark = pytest.mark.case
ledger = str(Path(__file__).parent / "ledger.py")
lease_s = 4.5
job_s = 10.0  # over two leases
options = ("run", ledger, "--lease", str(lease_s), "--poll", "600")
renewing = """
select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and query like '%renew(%'
"""


async def renewed(sql: Sql, job_id: int, times: int = 1) -> None:
    """Wait until the job's lease was renewed so many times more."""
    last = None
    for _ in range(times + 1):

        async def look(before: object = last) -> object:
            now = await sql.value("select expires from agentrt.leases where job_id = $1", job_id)
            return now if now is not None and now != before else None

        last = await eventually(look, what=f"a renewed lease of job {job_id}, last {last}")


async def went_on(program: Program, sql: Sql, job: agentrt.Job[object]) -> None:
    """The heartbeat failed and was seen to, the job was started once and reached its end, and no other was touched."""
    assert await job.result(timeout_s=30) == "rested"
    assert len(program.notes("start")) == 1
    assert await sql.value("select count(*) from agentrt.attempts") == 0
    assert program.events("lease.beat_failed", job_id=job.id)
    assert program.events("job.losing_lease") == []
    assert await program.stop() == 0


async def hold_up(sql: Sql, lock: asyncpg.Connection, job_id: int) -> None:
    """Lock the job's rows until the transaction ends; returns when a heartbeat waits for them."""
    await lock.execute("select 1 from agentrt.leases where job_id = $1 for update", job_id)
    await lock.execute("select 1 from agentrt.jobs where id = $1 for update", job_id)
    held = f"select count(*) from ({renewing} and wait_event_type = 'Lock') s"
    await eventually(lambda: sql.value(held), what="the heartbeat waits")


async def test_a_heartbeat_whose_connection_is_ended_is_repeated_and_the_job_goes_on(
    start: Start, client: agentrt.Client, sql: Sql, database: str
) -> None:
    program = start(*options)
    job = await agentrt.to("nap").send(seconds=job_s)
    await renewed(sql, job.id)

    lock = await asyncpg.connect(database)
    try:
        async with lock.transaction():
            await hold_up(sql, lock, job.id)  # or the idle connection would be replaced before a beat fails
            assert len(await sql.rows(f"select pg_terminate_backend(pid) from ({renewing}) s")) == 1
            await program.until("lease.beat_failed", job_id=job.id)
    finally:
        await lock.close()
    await renewed(sql, job.id, 2)
    await went_on(program, sql, job)


async def test_a_heartbeat_that_waits_for_a_lock_for_less_than_the_lease_loses_nothing(
    start: Start, client: agentrt.Client, sql: Sql, database: str
) -> None:
    program = start(*options)
    job = await agentrt.to("nap").send(seconds=job_s)
    await renewed(sql, job.id)

    lock = await asyncpg.connect(database)
    try:
        async with lock.transaction():
            await hold_up(sql, lock, job.id)
            await program.until("lease.beat_failed", job_id=job.id)
    finally:
        await lock.close()
    await renewed(sql, job.id, 2)
    await went_on(program, sql, job)


@pytest.fixture
async def role(server: str, database: str) -> AsyncIterator[str]:
    """The address of the database for a role of its own, whose right to log in can be taken away."""
    name = f"agentrt_role_{uuid.uuid4().hex[:8]}"
    parts = urlsplit(database)
    host = parts.netloc.rpartition("@")[2]
    connection = await asyncpg.connect(server)
    try:
        await connection.execute(f"create role {name} superuser login password '{name}'")
        yield urlunsplit((parts.scheme, f"{name}:{name}@{host}", parts.path, parts.query, ""))
        await connection.execute(f"drop role {name}")
    finally:
        await connection.close()


async def test_a_heartbeat_that_may_not_log_in_for_a_moment_is_repeated_and_the_job_goes_on(
    start: Start, client: agentrt.Client, sql: Sql, role: str
) -> None:
    program = start(*options, environ={"AGENTRT_DATABASE_URL": role})
    job = await agentrt.to("nap").send(seconds=job_s)
    await renewed(sql, job.id)
    name = urlsplit(role).username

    await sql.run(f"alter role {name} nologin")
    assert len(await sql.rows(f"select pg_terminate_backend(pid) from ({renewing}) s")) == 1
    await program.until("lease.beat_failed", job_id=job.id, count=2)
    await sql.run(f"alter role {name} login")
    await renewed(sql, job.id, 2)
    await went_on(program, sql, job)
