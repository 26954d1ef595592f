"""Rows in front of which claims are timed, written by plain SQL as fast as the server takes them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agentrt.store.postgres.by_hand.link import Link

_part = 20_000  # rows a statement: seconds at most, so that none runs into the statement timeout
_ready = """
insert into agentrt.jobs(agent, payload) select $1, json_build_object('n', n) from generate_series(1, $2::int) n
"""
_delayed = """
insert into agentrt.jobs(agent, payload, run_after)
select $1, json_build_object('n', n), agentrt.agentrt_now() + interval '1 day' from generate_series(1, $2::int) n
"""
_finished = """
insert into agentrt.history(id, agent, state, priority, attempt, fence, run_after, claimed_at, created_at, finished_at,
                            payload, result)
select nextval(pg_get_serial_sequence('agentrt.jobs', 'id')), $1, 'succeeded', 5, 1, 1, t.at, t.at, t.at, t.at,
       json_build_object('n', n), 'null'
  from (select agentrt.agentrt_now() as at) t, generate_series(1, $2::int) n
"""


class Backlog(Link):
    """Its connection may also hold an old snapshot."""

    async def fill(self, agent: str, *, ready: int, finished: int, delayed: int) -> AsyncIterator[int]:
        """Write so many rows; yields after each part how many there are."""
        done = 0
        for statement, count in ((_finished, finished), (_ready, ready), (_delayed, delayed)):
            for start in range(0, count, _part):
                part = min(_part, count - start)
                await self.rows(statement, agent, part)
                done += part
                yield done

    async def clear(self) -> None:
        await self.script("truncate agentrt.jobs, agentrt.history")

    @asynccontextmanager
    async def old_snapshot(self) -> AsyncIterator[None]:
        """A transaction that goes on seeing the database as it is now: no row that dies meanwhile can be cleaned up."""
        async with self.transaction(isolation="repeatable_read"):
            await self.rows("select 1 from agentrt.jobs limit 1")  # the snapshot is taken by the first statement
            yield
