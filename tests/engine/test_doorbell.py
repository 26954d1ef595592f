"""Who is not rung looks by itself: nothing that was sent meanwhile is lost, and nothing is found by the poll."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import asyncpg
import pytest

import agentrt
from agentrt import agent
from agentrt.engine.supervisor import Supervisor
from agentrt.testing import supervising
from tests.support import Sql, eventually

insert = "insert into agentrt.jobs(agent, payload) values ('gated', '{}')"
quiet = "select count(*) from agentrt.supervisors where quiet"


@dataclass
class Gate:
    """A supervisor with one slot, which its first job keeps until the gate is opened."""

    supervisor: Supervisor
    open: Callable[[], None]


@asynccontextmanager
async def full_supervisor(database: str, sql: Sql) -> AsyncIterator[Gate]:
    """All its slots are taken, more is ready, and its row says that nobody need ring."""
    gate = asyncio.Event()

    @agent
    async def gated() -> None:
        await gate.wait()

    async with supervising(database, gated, slots=1, poll_s=600, beat_s=10) as supervisor:
        for _ in range(2):
            await gated.send()
        await sql.until_count(quiet, 1)
        try:
            yield Gate(supervisor, gate.set)
        finally:
            gate.set()


@dataclass
class Ears:
    """What a session of its own hears of the bell for new work."""

    connection: asyncpg.Connection
    rings: int = 0
    marks: list[str] = field(default_factory=list)

    @classmethod
    @asynccontextmanager
    async def listening(cls, database: str) -> AsyncIterator[Ears]:
        connection = await asyncpg.connect(database)
        ears = cls(connection)

        def ring(*_: object) -> None:
            ears.rings += 1

        try:
            await connection.add_listener("agentrt.ready", ring)
            await connection.add_listener("mark", lambda _c, _p, _channel, payload: ears.marks.append(str(payload)))
            yield ears
        finally:
            await connection.close()

    async def all_heard(self, sql: Sql) -> int:
        """Hints come in the order of the commits: once the mark is heard, so is all before it."""
        mark = str(random.random())
        await sql.run("select pg_notify('mark', $1)", mark)

        async def marked() -> bool:
            return mark in self.marks

        await eventually(marked)
        return self.rings


async def test_nobody_rings_a_supervisor_whose_slots_are_taken_and_all_that_was_sent_runs(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    async with full_supervisor(database, sql) as gate, Ears.listening(database) as ears:
        for _ in range(5):
            await sql.run(insert)
        assert await ears.all_heard(sql) == 0
        gate.open()
        await sql.until_none_unfinished()
        await sql.until_count(quiet, 0)
        await sql.run(insert)
        assert await ears.all_heard(sql) == 1
        await sql.until_none_unfinished()
    assert gate.supervisor.stats.claimed["poll"] == 0


@pytest.mark.parametrize("savepoint", [False, True])
async def test_a_transaction_that_read_the_old_mark_and_commits_late_is_looked_for(
    database: str, client: agentrt.Client, sql: Sql, savepoint: bool
) -> None:
    async with full_supervisor(database, sql) as gate, Ears.listening(database) as ears:
        late = await asyncpg.connect(database)
        try:
            transaction = late.transaction()
            await transaction.start()
            if savepoint:
                async with late.transaction():
                    await late.execute(insert)
            else:
                await late.execute(insert)
            gate.open()
            await sql.until_count("select count(*) from agentrt.history", 2)
            await sql.until_count(quiet, 0)  # loud again, and what was to be found has been found
            rings = await ears.all_heard(sql)
            await transaction.commit()
            await sql.until_count("select count(*) from agentrt.history", 3)
            assert await ears.all_heard(sql) == rings  # nobody rang: it was looked for
        finally:
            await late.close()
    assert gate.supervisor.stats.claimed["poll"] == 0


async def test_an_old_snapshot_rings_whatever_it_reads(database: str, client: agentrt.Client, sql: Sql) -> None:
    async with full_supervisor(database, sql) as gate, Ears.listening(database) as ears:
        late = await asyncpg.connect(database)
        try:
            async with late.transaction(isolation="repeatable_read"):
                await late.execute(insert)
            assert await ears.all_heard(sql) == 1
        finally:
            await late.close()
        gate.open()
        await sql.until_none_unfinished()


async def test_who_was_silent_for_long_looks_behind_itself_when_it_beats_again(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    @agent
    async def gated() -> None:
        return

    async with supervising(database, gated, poll_s=600, beat_s=0.3) as supervisor:
        await gated.ask()
        async with Ears.listening(database) as ears:
            async with sql.connection.transaction():  # as the senders saw it while it was silent: nobody to ring
                await sql.run("update agentrt.supervisors set alive_at = now() - interval '1 min'")
                await sql.run(insert)
            await sql.until_none_unfinished()
            assert ears.rings == 0
    assert supervisor.stats.claimed["poll"] == 0


async def test_a_storm_of_rings_is_waited_out_in_quiet_and_loses_nothing(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    @agent
    async def gated() -> None:
        return

    await sql.run("create table marks(quiet boolean, at timestamptz default clock_timestamp())")
    await sql.run(
        "create function noted() returns trigger language plpgsql as"
        " $$ begin insert into marks values (new.quiet); return null; end $$"
    )
    await sql.run(
        "create trigger noted after update on agentrt.supervisors for each row"
        " when (new.quiet <> old.quiet) execute function noted()"
    )
    async with supervising(database, gated, poll_s=600) as supervisor:
        for _ in range(20):
            for _ in range(100):
                await sql.run("select pg_notify('agentrt.ready', '')")
            await sql.run(insert)
            if await sql.value("select count(*) from marks where quiet"):
                break
        assert await sql.value("select count(*) from marks where quiet") >= 1
        await sql.until_none_unfinished()
        await sql.until_count(quiet, 0)
        await gated.ask()
    assert supervisor.stats.claimed["poll"] == 0


async def test_random_senders_and_a_supervisor_at_its_limit_lose_nothing(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    dice = random.Random(4)

    @agent
    async def gated() -> None:
        await asyncio.sleep(dice.uniform(0, 0.004))

    async def produce(connection: asyncpg.Connection) -> int:
        committed = 0
        for _ in range(60):
            transaction = connection.transaction()
            await transaction.start()
            count = dice.randrange(1, 4)
            for _ in range(count):
                await connection.execute(insert)
            if dice.random() < 0.2:
                await asyncio.sleep(dice.uniform(0, 0.4))  # what is tested: transactions that last
            if dice.random() < 0.1:
                await transaction.rollback()
            else:
                await transaction.commit()
                committed += count
        return committed

    connections = [await asyncpg.connect(database) for _ in range(6)]
    try:
        async with supervising(database, gated, slots=3, poll_s=600, beat_s=1) as supervisor:
            sent = sum(await asyncio.gather(*map(produce, connections)))
            await sql.until_none_unfinished()
            assert await sql.value("select count(*) from agentrt.history") == sent
        assert supervisor.stats.claimed["poll"] == 0
    finally:
        for connection in connections:
            await connection.close()
