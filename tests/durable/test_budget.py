"""Budgets: what a tree of jobs may use, over processes, retries and questions."""

from __future__ import annotations

import asyncio
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest

import agentrt
from agentrt import Budget, Retry, agent, current, reserve, spend, step
from agentrt.model import Sender, StepMark, StepRecord
from agentrt.store.postgres import PostgresStore
from tests.conftest import supervising
from tests.support import Sql, eventually

quick = Retry(max_attempts=3, base_s=0.01, factor=1)
once = Retry(max_attempts=1)


async def pay(usd: float = 0, tokens: int = 0) -> float:
    spend(usd=usd, tokens=tokens)
    return usd


async def _failed(ask: Any, *words: str) -> None:
    with pytest.raises(agentrt.JobFailed) as failed:
        await ask
    assert failed.value.reason == "budget", failed.value
    assert [word for word in words if word not in failed.value.error] == [], failed.value.error


async def test_what_is_spent_over_the_limit_ends_the_job_with_what_was_spent(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    @agent(retry=quick, budget=Budget(usd=1, tokens=100))
    async def spender(usd: list[float], tokens: int) -> float:
        return sum([await step(pay, one, tokens) for one in usd])

    async with supervising(database, spender):
        assert await spender.ask([0.4, 0.6], 10) == 1.0
        await _failed(spender.ask([0.4, 0.7, 0.1], 0), "1.1 of 1 USD")
        await _failed(spender.ask([0, 0, 0], 40), "120 of 100 tokens")
    sums = await sql.rows("select usd, tokens from agentrt.budgets order by id")
    assert [tuple(row.values()) for row in sums] == [(Decimal("1.0"), 20), (Decimal("1.1"), 0), (0, 120)]
    assert await sql.value("select max(attempt) from agentrt.history") == 1


async def test_children_and_retries_pay_from_the_same_account(database: str, client: agentrt.Client, sql: Sql) -> None:
    @agent(retry=quick)
    async def child(usd: float) -> None:
        await step(pay, usd)
        if current().attempt == 1:
            raise RuntimeError("again, and not paid again")

    async def pay_and_fail() -> None:
        spend(usd=0.1)
        raise ConnectionError("a try that failed has cost all the same")

    @agent(retry=once, budget=Budget(usd=1))
    async def parent(usd: float) -> None:
        await asyncio.gather(child.ask(usd), child.ask(usd))
        try:
            await step(pay_and_fail, retry=quick)
        except ConnectionError:
            return

    async with supervising(database, parent, child), supervising(database, parent, child):
        await parent.ask(0.2)
        await _failed(parent.ask(0.4), "1.1 of 1 USD")
    assert [row["usd"] for row in await sql.rows("select usd from agentrt.budgets order by id")] == [
        Decimal("0.7"),
        Decimal("1.1"),
    ]


async def test_a_record_that_is_repeated_because_its_answer_was_lost_is_paid_once(
    database: str, client: agentrt.Client, store: PostgresStore, sql: Sql
) -> None:
    @agent(retry=once, budget=Budget(usd=1))
    async def spender() -> None:
        now = await sql.value("select fence from agentrt.jobs where id = $1", current().job_id)
        owner = Sender(current().job_id, now)
        for tries in (1, 1, 2, 2):
            record = StepRecord(StepMark("it"), done=tries == 2, wait_s=0.1, tries=tries, usd=Decimal("0.1"))
            await store.record(owner, record)

    async with supervising(database, spender):
        await spender.ask()
    assert await sql.value("select usd from agentrt.budgets") == Decimal("0.2")


async def test_jobs_hops_and_wall_time_are_bounded(database: str, client: agentrt.Client, sql: Sql) -> None:
    @agent(retry=once)
    async def leaf() -> str:
        return "leaf"

    @agent(retry=once)
    async def middle(deeper: int) -> str:
        return await (middle.ask(deeper - 1) if deeper else leaf.ask())

    @agent(retry=once, budget=Budget(jobs=3))
    async def few(count: int) -> None:
        await asyncio.gather(*(leaf.ask() for _ in range(count)))

    @agent(retry=once, budget=Budget(hops=2))
    async def near(deeper: int) -> str:
        return await middle.ask(deeper)

    @agent(retry=once)
    async def asleep() -> None:
        async with agentrt.shield():  # so that the deadline ends its asker first, not its own end
            await asyncio.sleep(3)
        await asyncio.sleep(60)

    @agent(retry=once, budget=Budget(wall_s=2))
    async def brief() -> None:
        await asleep.ask()

    async with supervising(database, leaf, middle, few, near, brief, asleep):
        await few.ask(2)
        await _failed(few.ask(3), "4 of 3 jobs")
        assert await near.ask(0) == "leaf"
        with pytest.raises(agentrt.JobFailed, match="further down the tree than its hops allow"):
            await near.ask(1)
        with pytest.raises(agentrt.JobCancelled, match="deadline"):
            await brief.ask()
        await sql.until_none_unfinished()
    ended = await sql.rows("select agent, reason from agentrt.history where state = 'cancelled' order by id")
    assert [tuple(row.values()) for row in ended] == [("brief", "deadline"), ("asleep", "deadline")]


async def test_fifty_jobs_together_cannot_reserve_more_than_there_is(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    inside, most = 0, 0

    @agent(retry=once)
    async def buyer() -> bool:
        nonlocal inside, most
        try:
            async with reserve(usd=0.1):
                inside += 1
                most = max(most, inside)
                await step(pay, 0.05)
                await asyncio.sleep(0.2)
                inside -= 1
        except agentrt.BudgetExceeded:
            return False
        return True

    @agent(retry=once, budget=Budget(usd=1))
    async def shop() -> int:
        return sum(await asyncio.gather(*(buyer.ask() for _ in range(50))))

    async with supervising(database, shop, buyer), supervising(database, shop, buyer):
        bought = await shop.ask()
    assert 6 <= bought <= 20
    assert most <= 10
    assert await sql.value("select usd from agentrt.budgets") == Decimal("0.05") * bought


@pytest.mark.parametrize("warm_s", [60.0, 0.1])
@pytest.mark.parametrize("answer", ["continue", "stop"])
async def test_a_person_is_asked_when_it_is_used_up_and_the_answer_survives_a_rerun(
    database: str, client: agentrt.Client, sql: Sql, answer: str, warm_s: float
) -> None:
    paid: Counter[float] = Counter()

    async def buy(usd: float) -> float:
        paid[usd] += 1
        spend(usd=usd)
        return usd

    @agent(retry=quick, budget=Budget(usd=1, on_exceeded="decide"))
    async def spender() -> float:
        total = await step(buy, 1.2) + await step(buy, 0.7)
        if current().attempt == 1:
            raise RuntimeError("again")
        return total + await step(buy, 0.05)

    async def asked() -> Any:
        return await client.store.decisions()

    async with supervising(database, spender, warm_s=warm_s):
        job = await spender.send()
        (question,) = await eventually(asked)
        assert "1.2 of 1 USD" in question["question"]
        if warm_s < 1:
            await sql.until(job.id, "parked")
        await client.decide(question["id"], answer, by="ann")
        if answer == "continue":
            assert await job.result(timeout_s=20) == pytest.approx(1.95)
        else:
            await _failed(job.result(timeout_s=20), "ann said stop")
    expected = {1.2: 1, 0.7: 1, 0.05: 1} if answer == "continue" else {1.2: 1}
    assert paid == expected
    assert await sql.value("select count(*) from agentrt.decisions") == 1
    assert await sql.value("select usd_max from agentrt.budgets") == (Decimal("2.2") if answer == "continue" else 1)


@pytest.mark.parametrize("warm_s", [60.0, 0.1])
async def test_a_reservation_and_a_send_can_wait_for_a_person(
    database: str, client: agentrt.Client, sql: Sql, warm_s: float
) -> None:
    @agent(retry=once)
    async def leaf() -> str:
        return "leaf"

    @agent(retry=quick, budget=Budget(usd=1, jobs=1, on_exceeded="decide"))
    async def spender() -> list[str]:
        async with reserve(usd=1.5):
            await step(pay, 1.4)
        return [await leaf.ask() for _ in range(2)]  # beyond the jobs that the first answer granted

    async def answer_all() -> bool:
        for row in await client.store.decisions():
            await client.decide(row["id"], "continue", by="ann")
        return bool(await sql.value("select count(*) = 3 from agentrt.history"))

    async with supervising(database, spender, leaf, warm_s=warm_s):
        job = await spender.send()
        await eventually(answer_all)
        assert await job.result(timeout_s=20) == ["leaf", "leaf"]
    assert await sql.value("select usd from agentrt.budgets") == Decimal("1.4")
    assert await sql.value("select count(*) from agentrt.decisions") == 2
