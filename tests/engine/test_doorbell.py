"""The doorbell: who looks by himself is not rung, and nothing that was sent meanwhile is lost or left to the poll."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta

import asyncpg
import pytest

from agentrt import agent
from agentrt.engine.supervisor import Supervisor
from tests.conftest import supervising
from tests.support import Sql, eventually

soon_s = 10.0  # far below the poll of these tests
insert = "insert into agentrt.jobs(agent, payload) values ('work', '{\"ms\": 0}') returning id"
insert_many = (
    "insert into agentrt.jobs(agent, payload) select 'work', json_build_object('ms', $2::int)"
    " from generate_series(1, $1::int) returning id"
)


@agent
async def work(ms: int) -> None:
    await asyncio.sleep(ms / 1000)


@pytest.fixture
def gate() -> asyncio.Event:
    """What the agent `held` waits for."""
    return asyncio.Event()


@asynccontextmanager
async def running(database: str, gate: asyncio.Event, slots: int = 2) -> AsyncIterator[Supervisor]:
    @agent
    async def held() -> None:
        await gate.wait()

    async with supervising(database, work, held, poll_s=600, slots=slots) as supervisor:

        async def well() -> bool:
            return bool(supervisor.health()["ok"])

        try:
            await eventually(well)
            yield supervisor
            assert supervisor.stats.claimed["poll"] == 0
        finally:
            gate.set()


async def until_quiet(sql: Sql, quiet: bool) -> None:
    await sql.until_count(f"select count(*) from agentrt.supervisors where quiet = {quiet}", 1)


async def fill(sql: Sql) -> None:
    """All slots taken, more ready: the supervisor becomes quiet."""
    await sql.run("insert into agentrt.jobs(agent) select 'held' from generate_series(1, 3)")
    await until_quiet(sql, True)


class Rings:
    """The rings for work that a listener hears, counted up to a moment."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._rings = 0
        self._markers = 0

    async def listen(self) -> None:
        await self._connection.add_listener("agentrt.ready", self._heard)
        await self._connection.add_listener("marker", self._heard)

    def _heard(self, _connection: object, _pid: int, channel: str, _payload: object) -> None:
        if channel == "marker":
            self._markers += 1
        else:
            self._rings += 1

    async def up_to_now(self, sql: Sql) -> int:
        """What came since the last look; hints come in the order of the commits, so the marker shows that all are here."""
        seen = self._markers
        await sql.run("notify marker")

        async def marked() -> bool:
            return self._markers > seen

        await eventually(marked)
        rings, self._rings = self._rings, 0
        return rings


@pytest.fixture
async def rings(database: str) -> AsyncIterator[Rings]:
    connection = await asyncpg.connect(database)
    rings = Rings(connection)
    await rings.listen()
    yield rings
    await connection.close()


@pytest.fixture
async def others(database: str) -> AsyncIterator[list[asyncpg.Connection]]:
    """Sessions of six senders."""
    async with AsyncExitStack() as stack:
        connections = []
        for _ in range(6):
            connections.append(await asyncpg.connect(database))
            stack.push_async_callback(connections[-1].close)
        yield connections


@asynccontextmanager
async def moves_noted(sql: Sql) -> AsyncIterator[None]:
    """Each change of the mark gets a row in `moves`."""
    await sql.run("""
        create table moves(quiet boolean, at timestamptz default clock_timestamp());
        create function note_move() returns trigger language plpgsql as
          $$begin insert into public.moves values (new.quiet); return null; end$$;
        create trigger note_move after update of quiet on agentrt.supervisors
          for each row execute function note_move()""")
    yield
    await sql.run("drop trigger note_move on agentrt.supervisors")


async def test_nobody_rings_a_supervisor_whose_slots_are_taken_and_what_was_sent_meanwhile_runs(
    database: str, gate: asyncio.Event, sql: Sql, rings: Rings
) -> None:
    async with running(database, gate) as supervisor:
        await sql.run(insert)
        assert await rings.up_to_now(sql) == 1
        await fill(sql)
        await rings.up_to_now(sql)
        ids = [await sql.value(insert) for _ in range(5)]
        assert await rings.up_to_now(sql) == 0

        gate.set()
        for job_id in ids:
            await sql.until(job_id, "succeeded", within_s=soon_s)
        await until_quiet(sql, False)
        await rings.up_to_now(sql)
        last = await sql.value(insert)
        assert await rings.up_to_now(sql) == 1
        await sql.until(last, "succeeded", within_s=soon_s)
        assert supervisor.stats.claimed["more"] >= len(ids)


@pytest.mark.parametrize("savepoint", [False, True])
async def test_a_job_of_a_transaction_that_outlasts_the_quiet_runs_when_it_is_committed(
    savepoint: bool, database: str, gate: asyncio.Event, sql: Sql, others: list[asyncpg.Connection], rings: Rings
) -> None:
    sender = others[0]
    async with running(database, gate) as supervisor:
        await fill(sql)
        transaction = sender.transaction()
        await transaction.start()
        if savepoint:
            lost = sender.transaction()
            await lost.start()
            await sender.fetchval(insert)
            await lost.rollback()
            async with sender.transaction():
                job_id = await sender.fetchval(insert)
        else:
            job_id = await sender.fetchval(insert)
        gate.set()
        await until_quiet(sql, False)
        await sql.until_none_unfinished()
        await rings.up_to_now(sql)
        before = supervisor.stats.claimed["quiet"]

        await transaction.commit()
        assert await rings.up_to_now(sql) == 0
        await sql.until(job_id, "succeeded", within_s=soon_s)
        assert supervisor.stats.claimed["quiet"] == before + 1


async def test_jobs_of_several_transactions_that_outlast_the_quiet_run_one_after_the_other(
    database: str, gate: asyncio.Event, sql: Sql, others: list[asyncpg.Connection], rings: Rings
) -> None:
    async with running(database, gate):
        await fill(sql)
        transactions = [sender.transaction() for sender in others]
        ids = []
        for sender, transaction in zip(others, transactions, strict=True):
            await transaction.start()
            ids.append(await sender.fetchval(insert))
        gate.set()
        await until_quiet(sql, False)
        await sql.until_none_unfinished()
        await rings.up_to_now(sql)

        for n, (job_id, transaction) in enumerate(zip(ids, transactions, strict=True)):
            await (transaction.rollback() if n == 2 else transaction.commit())
            if n != 2:
                await sql.until(job_id, "succeeded", within_s=soon_s)
        assert await rings.up_to_now(sql) == 0


async def test_a_snapshot_that_is_older_than_the_mark_always_rings(
    database: str, gate: asyncio.Event, sql: Sql, others: list[asyncpg.Connection], rings: Rings
) -> None:
    async with running(database, gate):
        await fill(sql)
        sender = others[0]
        async with sender.transaction(isolation="repeatable_read"):
            assert await sender.fetchval("select quiet from agentrt.supervisors")
            gate.set()
            await until_quiet(sql, False)
            await sql.until_none_unfinished()
            await rings.up_to_now(sql)
            job_id = await sender.fetchval(insert)  # only now does it have a number that others could wait for
            assert await sender.fetchval("select quiet from agentrt.supervisors")
        assert await rings.up_to_now(sql) == 1
        await sql.until(job_id, "succeeded", within_s=soon_s)


async def test_a_supervisor_that_was_silent_for_too_long_to_be_rung_looks_when_it_beats_again(
    database: str, gate: asyncio.Event, sql: Sql, rings: Rings
) -> None:
    async with running(database, gate) as supervisor:

        async def unheard() -> int | None:
            """A job of which nobody heard. None: the look of every start, which may go on until now, found it."""
            await rings.up_to_now(sql)
            async with sql.connection.transaction():
                await sql.run("update agentrt.supervisors set alive_at = clock_timestamp() - interval '36 s'")
                job_id: int = await sql.value(insert)
            assert await rings.up_to_now(sql) == 0
            return job_id if await sql.state(job_id) == "ready" else None

        job_id = await eventually(unheard)
        assert job_id is not None
        supervisor.clock_moved(0)  # so that it beats now
        await sql.until(job_id, "succeeded", within_s=soon_s)


async def test_a_storm_of_rings_is_quietened_and_loses_nothing(
    database: str, gate: asyncio.Event, sql: Sql, others: list[asyncpg.Connection], rings: Rings
) -> None:
    storm = f"do $$ begin for n in 1..300 loop {insert.removesuffix(' returning id')}; commit; end loop; end$$"
    async with moves_noted(sql), running(database, gate, slots=10_000) as supervisor:

        async def quietened() -> bool:
            await asyncio.gather(*(sender.execute(storm) for sender in others[:3]))
            return bool(await sql.value("select count(*) from moves where quiet"))

        await eventually(quietened)
        await sql.until_none_unfinished()
        await until_quiet(sql, False)
        assert supervisor.stats.claimed["quiet"] > 0
        await rings.up_to_now(sql)
        job_id = await sql.value(insert)
        assert await rings.up_to_now(sql) == 1
        await sql.until(job_id, "succeeded", within_s=soon_s)


async def test_the_mark_moves_at_most_ten_times_a_second_however_the_load_swings(
    database: str, gate: asyncio.Event, sql: Sql
) -> None:
    async with moves_noted(sql), running(database, gate, slots=1):
        async with asyncio.timeout(60):
            while await sql.value("select count(*) from moves") < 20:
                await sql.run(insert_many, 2, 25)
                await sql.until_none_unfinished()
    moves = [row["at"] for row in await sql.rows("select at from moves order by at")]
    assert max(_within_a_second(moves, since) for since in moves) <= 10


def _within_a_second(moves: list[datetime], since: datetime) -> int:
    return sum(since <= at < since + timedelta(seconds=1) for at in moves)


async def test_whatever_senders_do_every_committed_job_ends_without_the_poll(
    database: str, gate: asyncio.Event, sql: Sql, others: list[asyncpg.Connection]
) -> None:
    """Each round ends in silence: a job that nobody was rung for is not found by the ring of a later one."""
    choice = random.Random(12)
    committed: list[int] = []

    async def send_some(sender: asyncpg.Connection) -> None:
        for _ in range(choice.randint(1, 2)):
            await asyncio.sleep(choice.choice((0, 0.1, 0.15, 0.2)))
            isolation = choice.choice(("read_committed",) * 5 + ("repeatable_read",))
            transaction = sender.transaction(isolation=isolation)  # type: ignore[arg-type] # one of the names it takes
            await transaction.start()
            rows = await sender.fetch(insert_many, choice.randint(1, 3), choice.randint(0, 15))
            await asyncio.sleep(choice.choice((0, 0.02, choice.uniform(0, 0.5))))
            if choice.random() < 0.2:
                await transaction.rollback()
            else:
                await transaction.commit()
                committed.extend(row["id"] for row in rows)

    async with moves_noted(sql), running(database, gate):
        for _ in range(12):
            committed += [row["id"] for row in await sql.rows(insert_many, choice.randint(1, 60), 10)]
            await asyncio.gather(*(send_some(sender) for sender in others))
            await sql.until_none_unfinished(within_s=soon_s)
    assert await sql.value("select count(*) from moves") >= 4
    ended = await sql.rows("select id, state, attempt from agentrt.history")
    assert sorted(row["id"] for row in ended) == sorted(committed)
    assert {(row["state"], row["attempt"]) for row in ended} == {("succeeded", 1)}
