"""C63, command line: several processes make the tables at once, and the losers die of a duplicate or a deadlock."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from agentrt.store.postgres import PostgresStore
from agentrt.store.sql import migrations
from tests.conftest import Start
from tests.support import Sql

pytestmark = [pytest.mark.case, pytest.mark.timeout(300)]
agents = str(Path(__file__).parent / "ledger.py")


async def _assert_one_schema(sql: Sql) -> None:
    schemas = await sql.value(
        "select array_agg(nspname::text) from pg_namespace where nspname !~ '^pg_|_schema|public'"
    )
    assert schemas == ["agentrt"]
    versions = [row["version"] for row in await sql.rows("select version from agentrt.migrations order by 1")]
    assert versions == [version for version, _, _ in migrations()]


async def test_eight_processes_that_meet_an_empty_database_all_start_and_make_one_schema(
    empty_database: str, start: Start
) -> None:
    connection = await asyncpg.connect(empty_database)
    try:
        sql = Sql(connection)
        for round_number in range(3):
            names = [f"round-{round_number}-{n}" for n in range(8)]
            programs = [
                start("run", agents, name=name, environ={"AGENTRT_DATABASE_URL": empty_database}) for name in names
            ]
            await asyncio.gather(*(program.until("supervisor.started", within_s=90) for program in programs))
            await _assert_one_schema(sql)
            for program in programs:
                # With eight that start at once on a small machine, one may hear its own bell late.
                troubles = [entry for entry in program.events() if entry["level"] != "info"]
                assert {entry["event"] for entry in troubles} <= {"listener.deaf"}, program.log()
            job_id = await sql.value("insert into agentrt.jobs(agent) values ('instant') returning id")
            await sql.until(job_id, "succeeded")
            assert await asyncio.gather(*(program.stop() for program in programs)) == [0] * 8
            await sql.run("drop schema agentrt cascade")
    finally:
        await connection.close()


async def test_sixteen_that_prepare_the_same_empty_database_in_the_same_moment_all_succeed(empty_database: str) -> None:
    stores = [PostgresStore(empty_database) for _ in range(16)]
    try:
        for _ in range(3):
            await asyncio.gather(*(store.prepare() for store in stores))
            connection = await asyncpg.connect(empty_database)
            try:
                await _assert_one_schema(Sql(connection))
                await connection.execute("drop schema agentrt cascade")
            finally:
                await connection.close()
    finally:
        for store in stores:
            await store.close()
