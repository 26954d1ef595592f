"""Circles of asks: what could never be answered is refused when it is asked, and nothing hangs."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

import agentrt
from agentrt import Retry, agent, current
from tests.conftest import supervising
from tests.support import Sql

once = Retry(max_attempts=1)


@agent(retry=once)
async def relay(path: list[list[str]], over: str = "ask") -> Any:
    """Ask the first of `path` (agent, key) to ask the rest."""
    if not path:
        return "answered"
    (name, key), *rest = path
    address = agentrt.to(name) if not key else agentrt.to(name)[key]
    if over == "result":
        return await (await address.send(path=rest, over=over)).result()
    return await address.ask(path=rest, over=over)


@agent(name="other", retry=once)
async def other(path: list[list[str]], over: str = "ask") -> Any:
    return await relay(path, over)


@pytest.mark.parametrize("over", ["ask", "result"])
@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ([["relay", "x"], ["relay", "x"]], ["relay['x']"]),
        ([["relay", "x"], ["other", "y"], ["relay", "x"]], ["relay['x']", "other['y']"]),
        ([["relay", "x"], ["other", ""], ["relay", "x"]], ["relay['x']", "other"]),
        ([["relay", "x"], ["other", "y"], ["relay", "z"], ["other", "y"]], ["other['y']", "relay['z']"]),
    ],
)
async def test_an_ask_that_would_wait_for_itself_is_refused_with_the_path(
    database: str, client: agentrt.Client, sql: Sql, path: list[list[str]], shown: list[str], over: str
) -> None:
    async with supervising(database, relay, other, drain_s=0):
        with pytest.raises(agentrt.JobFailed) as failed:
            await relay.options(timeout_s=10).ask(path, over)
    text = failed.value.error
    assert "would wait for itself" in text
    arrows = text.partition("would wait for itself: ")[2]
    assert [name for name in shown if name not in arrows] == []
    assert await sql.value("select count(*) from agentrt.history where reason = 'cycle'") == 1


async def test_the_same_agents_without_a_circle_answer(database: str, client: agentrt.Client) -> None:
    async with supervising(database, relay, other, drain_s=0):
        path = [["relay", "x"], ["other", "y"], ["relay", "z"], ["other", ""], ["relay", ""]]
        assert await relay.options(timeout_s=10).ask(path) == "answered"


@pytest.mark.parametrize("way", ["dedup", "result", "of the parent"])
async def test_a_job_that_waits_for_its_own_end_is_refused(
    database: str, client: agentrt.Client, sql: Sql, way: str
) -> None:
    @agent(retry=once)
    async def selfish() -> None:
        if way == "dedup":
            await selfish.options(dedup="one").ask()
        elif way == "result":
            await client.job(current().job_id).result()
        else:
            await child.ask(current().job_id)

    @agent(retry=once)
    async def child(parent: int) -> None:
        await client.job(parent).result()

    async with supervising(database, selfish, child, drain_s=0):
        job = await selfish.options(dedup="one").send()
        with pytest.raises(agentrt.JobFailed, match="would wait for itself"):
            await job.result(timeout_s=10)


async def test_two_trees_that_wait_for_each_others_mailboxes_are_found(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    holding = [asyncio.Event(), asyncio.Event()]

    @agent(retry=once)
    async def tree(mine: int) -> str:
        return await owner[f"m{mine}"].ask(mine)

    @agent(retry=once)
    async def owner(mine: int) -> str:
        """Holds its own mailbox, and asks the other tree's."""
        holding[mine].set()
        await holding[1 - mine].wait()
        return await owner[f"m{1 - mine}"].ask(mine)

    async with supervising(database, tree, owner):
        outcomes = await asyncio.gather(
            *(tree.options(timeout_s=10).ask(mine) for mine in (0, 1)), return_exceptions=True
        )
    assert any(isinstance(one, agentrt.JobFailed) and "would wait for itself" in one.error for one in outcomes)


async def test_random_graphs_of_keyed_agents_never_hang(database: str, client: agentrt.Client, sql: Sql) -> None:
    generator = random.Random(7)

    def path() -> list[list[str]]:
        length = generator.randint(2, 5)
        return [[generator.choice(("relay", "other")), generator.choice(("a", "b", "c", ""))] for _ in range(length)]

    async with supervising(database, relay, other, warm_s=0.2):
        jobs = [await relay[generator.choice("abc")].send(path()) for _ in range(20)]
        outcomes = await asyncio.gather(*(job.result(timeout_s=60) for job in jobs), return_exceptions=True)
    for outcome in outcomes:
        assert outcome == "answered" or (isinstance(outcome, agentrt.JobFailed) and "wait for itself" in outcome.error)
    assert await sql.value("select count(*) from agentrt.jobs") == 0
