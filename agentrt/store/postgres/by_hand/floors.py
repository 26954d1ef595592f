"""What agentrt does, by hand with the bare driver: the floors that `agentrt bench` shows beside its figures."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence

from agentrt.store.postgres.by_hand.link import Link
from agentrt.store.postgres.lane import translated

tables = """
create table agentrt.by_hand_jobs(
  id bigint generated always as identity primary key, status text not null default 'ready', payload jsonb not null);
create index on agentrt.by_hand_jobs(id) where status = 'ready';
create table agentrt.by_hand_history(
  id bigint not null, state text not null, payload jsonb not null, finished_at timestamptz not null default clock_timestamp());
create index on agentrt.by_hand_history(id);
create table agentrt.by_hand_owners(id bigint primary key, fence bigint not null, status text not null);
create table agentrt.by_hand_steps(job_id bigint, step text, fence bigint, output json, primary key (job_id, step));
"""
_bell = """
create function agentrt.by_hand_wake() returns trigger language plpgsql as
  $$ begin perform pg_notify(tg_table_schema || '.by_hand', ''); return null; end $$;
create trigger by_hand_wake after insert on agentrt.by_hand_jobs for each statement execute function agentrt.by_hand_wake();
"""
_insert = "insert into agentrt.by_hand_jobs(payload) values ($1::text::jsonb) returning id"
_insert_many = "insert into agentrt.by_hand_jobs(payload) select p::jsonb from unnest($1::text[]) p returning id"
_claim = """
update agentrt.by_hand_jobs set status = 'running' where id = any(array(
  select id from agentrt.by_hand_jobs where status = 'ready' order by id limit $1 for no key update skip locked))
returning id, payload::text
"""
_claim_one = """
update agentrt.by_hand_jobs set status = 'running' where id = any(array(
  select id from agentrt.by_hand_jobs where status = 'ready' order by id limit 1 for no key update skip locked))
returning (payload->>'sent_at')::float8
"""
_complete = """
with ended as (delete from agentrt.by_hand_jobs where id = any($1::bigint[]) returning id, payload)
insert into agentrt.by_hand_history(id, state, payload) select id, 'succeeded', payload from ended
"""
_hop = """
with handled as (delete from agentrt.by_hand_jobs where id = $1 returning id)
insert into agentrt.by_hand_jobs(payload) select $2::text::jsonb from handled returning id
"""
_owners = """
insert into agentrt.by_hand_owners(id, fence, status) select n, 1, 'running' from generate_series(1, $1::int) n
on conflict do nothing
"""
_record = """
insert into agentrt.by_hand_steps(job_id, step, fence, output)
select j.id, $1, j.fence, $2::text::json
  from agentrt.by_hand_owners j where j.id = 1 and j.fence = 1 and j.status = 'running' for share of j
on conflict do nothing returning step
"""
_record_many = """
insert into agentrt.by_hand_steps(job_id, step, fence, output)
select j.id, $2, j.fence, u.output::json
  from unnest($1::text[]) with ordinality u(output, id)
  join agentrt.by_hand_owners j on j.id = u.id and j.fence = 1 and j.status = 'running' for share of j
on conflict do nothing returning job_id
"""


class ByHand(Link):
    """Each method is one statement and one commit, unless it says otherwise. A payload is JSON."""

    async def insert(self, payload: str) -> int:
        (row,) = await self.rows(_insert, payload)
        job_id: int = row[0]
        return job_id

    async def insert_many(self, payloads: Sequence[str]) -> None:
        await self.rows(_insert_many, payloads)

    async def claim(self, limit: int) -> list[int]:
        return [row[0] for row in await self.rows(_claim, limit)]

    async def complete(self, job_ids: Sequence[int]) -> None:
        await self.rows(_complete, job_ids)

    async def drain(self, batch: int) -> None:
        """Claim and complete until nothing is left: two statements a batch."""
        while job_ids := await self.claim(batch):
            await self.complete(job_ids)

    async def hop(self, job_id: int, payload: str) -> int:
        """Take the message that is handled, leave the next."""
        (row,) = await self.rows(_hop, job_id, payload)
        next_id: int = row[0]
        return next_id

    async def own(self, jobs: int) -> None:
        """Running jobs 1 … `jobs`, whose steps `record` writes."""
        await self.rows(_owners, jobs)

    async def record(self, step: str, output: str) -> None:
        """A step of job 1, under its fence."""
        await self.rows(_record, step, output)

    async def record_many(self, step: str, outputs: Sequence[str]) -> None:
        """One step of each of the jobs 1 … , under their fences."""
        await self.rows(_record_many, outputs, step)

    async def hang_bell(self) -> None:
        """From now on an insert notifies, as `receive` expects it."""
        await self.script(_bell)

    async def listen(self, heard: Callable[[], None]) -> None:
        with translated("listen"):
            await self.connection.add_listener(f"{self.schema}.by_hand", lambda *_: heard())

    async def ring(self) -> None:
        """Insert a message that says when it was sent."""
        await self.insert(f'{{"sent_at": {time.monotonic()!r}}}')


async def receive(dsn: str, schema: str) -> None:
    """Print the seconds of each wake-up until standard input ends."""
    async with ByHand.opened(dsn, schema) as listening, ByHand.opened(dsn, schema) as claiming:
        rung = asyncio.Event()
        await listening.listen(rung.set)
        _say("listening")
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), sys.exit)
        while True:
            await rung.wait()
            rung.clear()
            while (sent_at := await claiming.value(_claim_one)) is not None:
                _say(f"{time.monotonic() - sent_at:.9f}")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
