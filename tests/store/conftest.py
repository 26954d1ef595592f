"""One database for all tests of the store, emptied before each.

A database a test costs a checkpoint when it is dropped, `truncate` new files for every table and index.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from agentrt.store.postgres import PostgresStore
from tests.conftest import execute, on_server

_empty = """
select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid();
drop table if exists agentrt.test_clock;
set session_replication_role = replica;
do $$
declare v_table regclass;
begin
  for v_table in select oid from pg_class where relnamespace = 'agentrt'::regnamespace and relkind in ('r', 'p')
                    and not relispartition and relname <> 'migrations' loop
    execute format('delete from %s', v_table);
  end loop;
end$$;
"""


@pytest.fixture(scope="session")
def shared_database(server: str, migrated: str) -> Iterator[tuple[str, str]]:
    """A database with the tables, and the definition of its clock."""
    name = f"agentrt_test_{uuid.uuid4().hex[:12]}"

    async def make() -> str:
        await execute(
            server,
            f'create database "{name}" template "{migrated}"',
            f'alter database "{name}" set synchronous_commit = off',  # no test here crashes the server
        )
        connection = await asyncpg.connect(on_server(server, name))
        clock: str = await connection.fetchval("select pg_get_functiondef('agentrt.agentrt_now'::regproc)")
        await connection.close()
        return clock

    clock = asyncio.run(make())
    yield on_server(server, name), clock
    asyncio.run(execute(server, f'drop database "{name}" with (force)'))


@pytest.fixture
async def database(shared_database: tuple[str, str]) -> str:
    """The database, empty and on the real time."""
    dsn, clock = shared_database
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(_empty + clock)
    finally:
        await connection.close()
    return dsn


@pytest.fixture
async def bare(shared_database: tuple[str, str]) -> AsyncIterator[PostgresStore]:
    """A store without tables: in a schema that is not there yet."""
    dsn, _ = shared_database
    schema = f"bare_{uuid.uuid4().hex[:12]}"
    store = PostgresStore(dsn, schema)
    yield store
    await store.close()
    await execute(dsn, f'drop schema if exists "{schema}" cascade')
