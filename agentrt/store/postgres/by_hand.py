"""What agentrt does, by hand with the bare driver: the floors that `agentrt bench` shows beside its figures."""

from __future__ import annotations

import asyncio
import sys
import time

import asyncpg

from agentrt.store.postgres.lane import server_settings

schema = "agentrt_bench_by_hand"
tables = f"""
drop schema if exists {schema} cascade;
create schema {schema};
create table {schema}.jobs(
  id bigint generated always as identity primary key, status text not null default 'ready', payload jsonb not null);
create index on {schema}.jobs(id) where status = 'ready';
create function {schema}.wake() returns trigger language plpgsql as
  $$ begin perform pg_notify('{schema}', ''); return null; end $$;
create trigger wake after insert on {schema}.jobs for each statement execute function {schema}.wake();
"""
insert = f"insert into {schema}.jobs(payload) values (jsonb_build_object('sent_at', $1::float8))"  # noqa: S608 - constant
claim = f"""
update {schema}.jobs set status = 'running' where id = any(array(
  select id from {schema}.jobs where status = 'ready' order by id limit 1 for no key update skip locked))
returning (payload->>'sent_at')::float8
"""  # noqa: S608 - constant
step_tables = f"""
drop schema if exists {schema} cascade;
create schema {schema};
create table {schema}.jobs(id bigint primary key, fence bigint not null, status text not null);
create table {schema}.steps(job_id bigint, step text, fence bigint, output json, primary key (job_id, step));
insert into {schema}.jobs values (1, 1, 'running');
"""  # noqa: S608 - constant
step_insert = f"""
insert into {schema}.steps(job_id, step, fence, output)
select j.id, $1, j.fence, $2::text::json
  from {schema}.jobs j where j.id = 1 and j.fence = 1 and j.status = 'running' for share of j
on conflict do nothing returning step
"""  # noqa: S608 - constant
drop = f"drop schema if exists {schema} cascade"


class Sender:
    """The sending side: makes the tables, inserts, cleans up."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    @classmethod
    async def open(cls, dsn: str) -> Sender:
        connection = await asyncpg.connect(dsn, server_settings=server_settings)
        await connection.execute(tables)
        return cls(connection)

    async def send(self) -> None:
        await self._connection.execute(insert, time.monotonic())

    async def close(self) -> None:
        await self._connection.execute(drop)
        await self._connection.close()


async def receive(dsn: str) -> None:
    """Print the seconds of each wake-up until standard input ends."""
    listening = await asyncpg.connect(dsn, server_settings=server_settings)
    claiming = await asyncpg.connect(dsn, server_settings=server_settings)
    rung = asyncio.Event()
    await listening.add_listener(schema, lambda *_: rung.set())
    statement = await claiming.prepare(claim)
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), sys.exit)
    while True:
        await rung.wait()
        rung.clear()
        while (sent_at := await statement.fetchval()) is not None:
            sys.stdout.write(f"{time.monotonic() - sent_at:.9f}\n")
            sys.stdout.flush()


class StepWriter:
    """A fenced insert for each step of a job, and nothing else."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._written = 0

    @classmethod
    async def open(cls, dsn: str) -> StepWriter:
        connection = await asyncpg.connect(dsn, server_settings=server_settings)
        await connection.execute(step_tables)
        return cls(connection)

    async def write(self, output: str) -> None:
        self._written += 1
        await self._connection.fetch(step_insert, f"step#{self._written}", output)

    async def close(self) -> None:
        await self._connection.execute(drop)
        await self._connection.close()
