"""The walk of a message, in one process: sent, woken, claimed, run, stored, answered."""

from __future__ import annotations

import asyncio

import pytest

import agentrt
from agentrt import Fail, Retry, RetryAfter, agent, step
from tests.conftest import supervising
from tests.support import Sql

quick = Retry(max_attempts=3, base_s=0.05, factor=1)


@agent
async def double(x: int) -> int:
    return x * 2


@agent
def plain(x: int) -> int:
    return x + 1


@agent
async def asker(n: int) -> int:
    return sum(await asyncio.gather(*(double.ask(i) for i in range(n))))


@agent(retry=quick)
async def broken(x: int) -> int:
    raise ValueError(f"no {x}")


@agent(retry=quick)
async def hopeless() -> None:
    raise Fail("the account is closed")


async def test_a_message_runs_and_its_result_comes_back(database: str, client: agentrt.Client) -> None:
    async with supervising(database, double, plain):
        job = await double.send(21)
        assert await job.result(timeout_s=10) == 42
        assert await plain.ask(1) == 2
        assert await job.status() is agentrt.State.succeeded


async def test_an_asker_that_waits_holds_no_slot(database: str, client: agentrt.Client) -> None:
    async with supervising(database, double, asker, slots=2):
        assert await asker.options(timeout_s=20).ask(40) == 40 * 39


async def test_a_failing_job_uses_its_attempts_and_keeps_them_all(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    async with supervising(database, broken):
        job = await broken.send(7)
        with pytest.raises(agentrt.JobFailed, match="ValueError: no 7"):
            await job.result(timeout_s=10)
    attempts = await sql.rows("select attempt, reason, kind, text, traceback from agentrt.attempts order by fence")
    assert [row["attempt"] for row in attempts] == [1, 2, 3]
    assert {(row["reason"], row["kind"], row["text"]) for row in attempts} == {("error", "ValueError", "no 7")}
    assert all("test_walk.py" in row["traceback"] for row in attempts)


async def test_fail_ends_a_job_at_once(database: str, client: agentrt.Client, sql: Sql) -> None:
    async with supervising(database, hopeless):
        with pytest.raises(agentrt.JobFailed, match="the account is closed"):
            await hopeless.options(timeout_s=10).ask()
    assert await sql.value("select count(*) from agentrt.attempts") == 1


async def test_retry_after_reschedules_without_costing_an_attempt(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    calls = 0

    @agent(retry=Retry(max_attempts=1))
    async def limited() -> int:
        nonlocal calls
        calls += 1
        if calls < 4:
            raise RetryAfter(0.05, "rate limit")
        return agentrt.current().attempt

    async with supervising(database, limited):
        assert await limited.options(timeout_s=10).ask() == 1
    assert calls == 4


async def test_a_recorded_step_runs_once_however_often_the_attempt_is_repeated(
    database: str, client: agentrt.Client
) -> None:
    runs: list[str] = []

    async def fetch(what: str) -> str:
        runs.append(what)
        return what.upper()

    @agent(retry=quick)
    async def worker() -> list[str]:
        found = [await step(fetch, "a"), await step(fetch, "b")]
        if agentrt.current().attempt < 3:
            raise RuntimeError("after the steps")
        return found

    async with supervising(database, worker):
        assert await worker.options(timeout_s=10).ask() == ["A", "B"]
    assert runs == ["a", "b"]


async def test_a_message_sent_by_an_attempt_is_sent_once_however_often_it_is_repeated(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    @agent(retry=quick)
    async def sender() -> int:
        first = await double.send(1)
        second = await double.send(2)
        if agentrt.current().attempt < 3:
            raise RuntimeError("after the sends")
        return second.id - first.id

    async with supervising(database, sender, double):
        await sender.options(timeout_s=10).ask()
        await sql.until_none_unfinished()
    assert await sql.value("select count(*) from agentrt.history where agent = 'double'") == 2


async def test_an_agent_called_directly_runs_without_a_runtime() -> None:
    async def fetch() -> int:
        return 5

    @agent
    async def lonely(x: int) -> int:
        return x + await step(fetch)

    assert await lonely(2) == 7
