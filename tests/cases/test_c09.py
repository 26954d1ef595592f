"""C09, claim: a job that is sent in the caller's transaction runs before the commit, or survives the rollback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

import agentrt
from agentrt import agent
from tests.conftest import supervising
from tests.support import Sql

pytestmark = pytest.mark.case
ways: list[dict[str, Any]] = [{}, {"key": "alice"}, {"dedup": "once"}, {"key": "alice", "dedup": "once"}]
handled: list[int] = []


@agent
async def bill(order: int) -> None:
    handled.append(order)


@agent
async def other() -> None: ...


@pytest.fixture
async def mine(database: str, sql: Sql) -> AsyncIterator[asyncpg.Connection]:
    """The caller's own connection, to a database with a table of its own."""
    handled.clear()
    await sql.run("create table orders(id int primary key)")
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()


@pytest.mark.parametrize("way", ways, ids=str)
async def test_a_message_in_the_callers_transaction_is_seen_by_nobody_before_the_commit_and_at_once_after_it(
    way: dict[str, Any], database: str, client: agentrt.Client, mine: asyncpg.Connection, sql: Sql
) -> None:
    async with supervising(database, bill, other, poll_s=600) as supervisor:
        transaction = mine.transaction()
        await transaction.start()
        await mine.execute("insert into orders values (1)")
        job = await bill.options(connection=mine, **way).send(1)
        await other.options(timeout_s=30).ask()  # a claim that looks while the transaction is open
        assert handled == []
        assert await sql.state(job.id) is None
        await transaction.commit()
        await job.result(timeout_s=10)
        assert handled == [1]
        assert supervisor.stats.claimed["poll"] == 0


@pytest.mark.parametrize("way", ways, ids=str)
async def test_a_message_in_a_transaction_that_is_rolled_back_never_was(
    way: dict[str, Any], database: str, client: agentrt.Client, mine: asyncpg.Connection, sql: Sql
) -> None:
    async with supervising(database, bill, other, poll_s=600):
        transaction = mine.transaction()
        await transaction.start()
        gone = await bill.options(connection=mine, **way).send(1)
        await transaction.rollback()
        with pytest.raises(agentrt.JobNotFound):
            await gone.result(timeout_s=10)

        kept = await bill.options(**way).send(2)  # neither its key nor its dedup is held by what never was
        await kept.result(timeout_s=10)
        assert handled == [2]
        assert await sql.value("select count(*) from agentrt.all_jobs") == 1


async def test_many_messages_in_the_callers_transaction_are_all_there_or_none(
    database: str, client: agentrt.Client, mine: asyncpg.Connection, sql: Sql
) -> None:
    async def order_twice() -> None:
        async with mine.transaction():
            await mine.execute("insert into orders values (1)")
            await agentrt.send_many([bill.message(n) for n in range(1_200)], connection=mine)
            await mine.execute("insert into orders values (1)")

    with pytest.raises(asyncpg.UniqueViolationError):
        await order_twice()
    assert await sql.value("select count(*) from agentrt.jobs") == 0
    async with mine.transaction():
        await agentrt.send_many([bill.message(n) for n in range(1_200)], connection=mine)
    assert await sql.value("select count(*) from agentrt.jobs") == 1_200
