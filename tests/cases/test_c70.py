"""C70, observability: an agent that answers another agent fails, is cancelled or does not exist, and the asker waits for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import agentrt
from agentrt import Retry, agent
from tests.conftest import supervising
from tests.support import Sql, eventually

pytestmark = pytest.mark.case
quick = Retry(max_attempts=2, base_s=0.05, factor=1)


@agent(retry=quick)
async def broken() -> str:
    raise ValueError("the oven is cold")


@agent(retry=quick)
async def endless() -> str:
    await asyncio.sleep(600)
    return "never"


@agent(retry=quick)
async def asker(name: str, timeout_s: float, key: str | None) -> list[str | int]:
    """Tells what became of the question."""
    try:
        await agentrt.to(name).options(timeout_s=timeout_s, key=key).ask()
    except agentrt.JobError as error:
        return [type(error).__name__, error.job_id, str(error)]
    return []


@agent(retry=quick)
async def careless(name: str) -> None:
    await agentrt.to(name).options(timeout_s=60).ask()


@agent(retry=quick)
async def chain(names: list[str]) -> list[int]:
    now = agentrt.current()
    return [now.job_id, now.root, *(await chain.ask(names[1:]) if names else [])]


agents: list[agentrt.Agent[..., Any]] = [broken, endless, asker, careless, chain]


@pytest.mark.parametrize("key", [None, "k"])
async def test_the_asker_hears_that_the_job_asked_has_failed(
    key: str | None, database: str, client: agentrt.Client, sql: Sql
) -> None:
    async with supervising(database, *agents, poll_s=600):
        job = await asker.send("broken", 60, key)
        kind, asked_id, text = await job.result(timeout_s=15)
        assert (kind, text) == ("JobFailed", f"Job {asked_id} (broken) failed, error: ValueError: the oven is cold")
    asked = await sql.job(int(asked_id))
    assert (asked["attempt_count"], asked["parent"], asked["root"]) == (2, job.id, job.id)


async def test_the_asker_hears_within_its_timeout_that_nobody_answers(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    async with supervising(database, *agents, poll_s=600):
        job = await asker.send("nobody has this name", 0.5, None)
        kind, asked_id, text = await job.result(timeout_s=15)
        assert kind == "ReplyTimeout"
        assert f"'agentrt why {asked_id}'" in str(text)
    assert await sql.state(int(asked_id)) == "ready"


async def test_the_asker_hears_that_the_job_asked_was_cancelled(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    async with supervising(database, *agents, poll_s=600):
        job = await asker.send("endless", 60, None)

        async def asked() -> int | None:
            found: int | None = await sql.value(
                "select id from agentrt.jobs where parent = $1 and status = 'running'", job.id
            )
            return found

        asked_id = await eventually(asked)
        assert asked_id is not None
        await client.cancel(asked_id, "too hot")
        kind, cancelled_id, text = await job.result(timeout_s=15)
        assert (kind, cancelled_id) == ("JobCancelled", asked_id)
        assert "too hot" in str(text)


async def test_an_asker_that_does_not_catch_it_fails_with_the_error_of_the_job_asked_which_was_sent_once(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    async with supervising(database, *agents, poll_s=600):
        job = await careless.send("broken")
        with pytest.raises(agentrt.JobFailed) as failed:
            await job.result(timeout_s=15)
    (asked_id,) = [row["id"] for row in await sql.rows("select id from agentrt.history where agent = 'broken'")]
    assert failed.value.error.endswith(
        f"JobFailed: Job {asked_id} (broken) failed, error: ValueError: the oven is cold"
    )


async def test_a_chain_of_asks_shares_one_root(database: str, client: agentrt.Client, sql: Sql) -> None:
    async with supervising(database, *agents, poll_s=600, slots=2):
        job = await chain.send(["b", "c", "d"])
        seen = await job.result(timeout_s=15)
    ids, roots = seen[::2], seen[1::2]
    assert roots == [job.id] * 4
    rows = await sql.rows("select id, parent, root from agentrt.history order by id")
    assert [row["id"] for row in rows] == ids
    assert [row["parent"] for row in rows] == [None, *ids[:-1]]
    assert [row["root"] for row in rows] == [None, *[job.id] * 3]
