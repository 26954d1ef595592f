"""The cost of the bell: while no supervisor wants to be rung, senders are nearly as fast as without any trigger."""

from __future__ import annotations

import statistics
from contextlib import AsyncExitStack

import asyncpg
import pytest

from agentrt.store.postgres import PostgresStore
from tests.bench.fleet import commits_per_s
from tests.store.verbs import beat, here
from tests.support import Sql

insert = """insert into agentrt.jobs(agent, payload) values ('a', '{"text": "a small message"}')"""
blocks = 4  # of each kind, in turns, so that what else the machine does falls on both
block_s = 0.3
rounds_max = 3


async def speeds(sql: Sql, connections: list[asyncpg.Connection]) -> tuple[float, float]:
    """Medians with the triggers of jobs, and without any."""
    rung, bare = [], []
    for _ in range(blocks):
        rung.append(await commits_per_s(insert, connections, block_s))
        await sql.run("alter table agentrt.jobs disable trigger user")
        bare.append(await commits_per_s(insert, connections, block_s))
        await sql.run("alter table agentrt.jobs enable trigger user")
    return statistics.median(rung), statistics.median(bare)


@pytest.mark.usefixtures("flushing")
@pytest.mark.parametrize("senders", [8, 32])
async def test_senders_keep_their_speed_while_every_supervisor_is_quiet(
    database: str, store: PostgresStore, sql: Sql, senders: int
) -> None:
    await beat(store)
    await store.set_quiet(here, True)
    seen: list[tuple[float, float]] = []
    async with AsyncExitStack() as stack:
        connections: list[asyncpg.Connection] = []
        for _ in range(senders):
            connections.append(await asyncpg.connect(database))
            stack.push_async_callback(connections[-1].close)
            await connections[-1].execute("set synchronous_commit = on")
            await connections[-1].execute(insert)
        listener = await store.listen(lambda _channel, _payload: None)
        stack.push_async_callback(listener.close)
        while len(seen) < rounds_max and (not seen or seen[-1][0] < 0.8 * seen[-1][1]):
            seen.append(await speeds(sql, connections))
    rung, bare = seen[-1]
    print(f"{senders} senders: {rung:,.0f} inserts/s, {bare:,.0f} without triggers")  # noqa: T201 - the figure, with `-s`
    assert rung >= 0.8 * bare, seen
