"""Transactions: the agent's SQL, the record and the messages are there together or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import agentrt
from agentrt import Retry, agent, current, transaction
from tests.conftest import Start, supervising
from tests.support import Sql

ledger = str(Path(__file__).parents[1] / "cases" / "ledger.py")
quick = Retry(max_attempts=3, base_s=0.01, factor=1)


@agent(retry=quick)
async def leaf(n: int) -> int:
    return n


async def test_used_twice_each_is_a_step_that_runs_once(database: str, client: agentrt.Client, sql: Sql) -> None:
    await sql.run("create table mine(n int)")

    async def insert(connection: Any, n: int) -> int:
        await connection.execute("insert into mine values ($1)", n)
        await leaf.send(n)
        total: int = await connection.fetchval("select sum(n) from mine")
        return total

    @agent(retry=quick)
    async def writer() -> list[int]:
        sums = [await transaction(insert, 1), await transaction(insert, 2)]
        if current().attempt == 1:
            raise RuntimeError("again")
        return sums

    async with supervising(database, writer, leaf):
        assert await writer.ask() == [1, 3]
        await sql.until_none_unfinished()
    assert await sql.value("select array_agg(n order by n) from mine") == [1, 2]
    assert await sql.value("select count(*) from agentrt.history where agent = 'leaf'") == 2


async def test_a_failure_takes_everything_back_and_is_kept_as_that_of_a_step(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    await sql.run("create table mine(n int primary key)")
    runs: list[int] = []

    async def insert(connection: Any) -> None:
        runs.append(current().attempt)
        await connection.execute("insert into mine values (1)")
        await leaf.send(1)
        raise ValueError("in the middle")

    @agent(retry=quick)
    async def writer() -> str:
        try:
            await transaction(insert)
        except ValueError as error:
            said = str(error)
        if current().attempt == 1:
            raise RuntimeError("again")
        return said

    async with supervising(database, writer, leaf):
        assert await writer.ask() == "in the middle"
    assert runs == [1]
    assert await sql.value("select count(*) from mine") == 0
    assert await sql.value("select count(*) from agentrt.all_jobs where job_type = 'leaf'") == 0


async def test_it_is_refused_where_it_cannot_be(database: str, client: agentrt.Client) -> None:
    async def inside(_connection: Any) -> None:
        await transaction(inside)

    async def asks(_connection: Any) -> None:
        await leaf.ask(1)

    @agent(retry=quick)
    async def wrong() -> list[str]:
        said = []
        for fn in (inside, asks):
            try:
                await transaction(fn)
            except agentrt.UsageError as error:
                said.append(str(error))
        return said

    async with supervising(database, wrong, leaf):
        twice, asking = await wrong.ask()
    assert "inside another transaction" in twice
    assert "inside transaction()" in asking
    with pytest.raises(agentrt.UsageError, match="outside of a job"):
        await transaction(inside)
    with pytest.raises(agentrt.UsageError, match="takes the function that is to run"):
        async with transaction():  # type: ignore[attr-defined]
            pass


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_kill_before_the_commit_leaves_nothing_and_one_after_it_everything(
    start: Start, client: agentrt.Client, sql: Sql, moment: str
) -> None:
    await sql.run("create table mine(n int)")
    source = f"""
import os, signal
from agentrt import agent, current, transaction
from ledger import instant, note

def die(moment: str) -> None:
    if moment == "{moment}" and current().attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)

async def insert(connection, n: int) -> int:
    note("inside", n=n)
    await connection.execute("insert into mine values ($1)", n)
    await instant.send(n)
    die("before")
    return n

@agent
async def writer() -> int:
    said = await transaction(insert, 1)
    die("after")
    return said + await transaction(insert, 2)
"""
    options = ("run", ledger, "agents.py", "--lease", "1", "--poll", "1")
    first = start(*options, source=source, name="first")
    job = await agentrt.to("writer").send()
    assert await first.ended() == -9
    stored = (
        await sql.value("select count(*) from mine"),
        await sql.value("select count(*) from agentrt.steps where kind = 'step'"),
        await sql.value("select count(*) from agentrt.all_jobs where job_type = 'instant'"),
    )
    assert stored == ((0, 0, 0) if moment == "before" else (1, 1, 1))
    start(*options, name="second")

    assert await job.result(timeout_s=20) == 3
    assert await sql.value("select array_agg(n order by n) from mine") == [1, 2]
    assert await sql.value("select count(*) from agentrt.all_jobs where job_type = 'instant'") == 2
    assert [note["n"] for note in first.notes("inside")] == ([1, 1, 2] if moment == "before" else [1, 2])


async def test_what_a_transaction_spends_is_booked_with_it(database: str, client: agentrt.Client, sql: Sql) -> None:
    async def pay(connection: Any, usd: float) -> float:
        agentrt.spend(usd=usd)
        return usd

    @agent(budget=agentrt.Budget(usd=1.0))
    async def paying() -> None:
        await agentrt.transaction(pay, 0.75)
        await agentrt.transaction(pay, 0.5)

    async with supervising(database, paying):
        with pytest.raises(agentrt.JobFailed, match=r"1\.25 of 1\.0 USD"):
            await paying.ask()
    assert [float(row["usd"]) for row in await sql.rows("select usd from agentrt.steps order by seq")] == [0.75, 0.5]
