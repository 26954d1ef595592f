"""Databases for tests: made and dropped on a server whose user may do that, and their clock moved."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID, uuid4

import asyncpg

from agentrt.store.postgres.lane import connect, translated
from agentrt.store.sql import in_schema

_install = """
create table if not exists agentrt.test_clock(ahead interval not null);
insert into agentrt.test_clock select '0' where not exists (select 1 from agentrt.test_clock);
create or replace function agentrt.agentrt_now() returns timestamptz language sql volatile as
 $$ select clock_timestamp() + (select ahead from agentrt.test_clock) $$;
"""
_keep_jobs = """
update agentrt.jobs set lease_expires = lease_expires + make_interval(secs => $1)
 where status = 'running' and supervisor = any($2)
"""
_keep_leases = """
update agentrt.leases l set expires = l.expires + make_interval(secs => $1)
  from agentrt.jobs j where j.id = l.job_id and j.fence = l.fence and j.supervisor = any($2)
"""
_empty = """
do $$
declare
  v_name text;
  v_schema oid = to_regnamespace(quote_ident('agentrt'));
begin
  for v_name in select relname from pg_class where relnamespace = v_schema and relkind in ('r', 'p') and not relispartition
                     and relname not in ('migrations', 'test_clock') loop
    execute format('delete from agentrt.%I', v_name);
  end loop;
  for v_name in select relname from pg_class where relnamespace = v_schema and relkind = 'S' loop
    execute format('alter sequence agentrt.%I restart', v_name);
  end loop;
  if to_regclass(quote_ident('agentrt') || '.test_clock') is not null then
    update agentrt.test_clock set ahead = '0';
  end if;
end$$
"""
_move = "update agentrt.test_clock set ahead = ahead + make_interval(secs => $1)"


def on_server(server: str, name: str) -> str:
    """The address of another database of the same server."""
    parts = urlsplit(server)
    return urlunsplit((parts.scheme, parts.netloc, f"/{name}", parts.query, ""))


@asynccontextmanager
async def fresh_database(server: str) -> AsyncIterator[str]:
    """The address of a new database while the block runs."""
    name = f"agentrt_test_{uuid4().hex[:12]}"
    await _execute(server, f'create database "{name}"')
    try:
        yield on_server(server, name)
    finally:
        await _execute(server, f'drop database if exists "{name}" with (force)')


async def move_clock(dsn: str, schema: str, seconds: float, living: list[UUID]) -> None:
    """Set the time of a database ahead, from now on for every session; leases of `living` supervisors move along.

    The tables must be there. The time is replaced when it is moved for the first time.
    """
    connection = await connect(dsn)
    try:
        with translated("move the clock"):
            async with connection.transaction():
                await connection.execute(in_schema(_install, schema))
                await connection.execute(in_schema(_keep_jobs, schema), seconds, living)
                await connection.execute(in_schema(_keep_leases, schema), seconds, living)
                await connection.execute(in_schema(_move, schema), seconds)
                await connection.execute("select pg_notify($1, '')", f"{schema}.due")
    finally:
        await connection.close()


async def empty(dsn: str, schema: str = "agentrt") -> None:
    """Remove all jobs and all that is kept of them, on the real time again. Nobody works there."""
    await _execute(dsn, in_schema(_empty, schema))


async def _execute(dsn: str, statement: str) -> None:
    with translated("make or drop a test's database"):
        connection: asyncpg.Connection = await asyncpg.connect(dsn)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()
