"""Trees of jobs: cancels go down them, deadlines travel, and their depth is bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import agentrt
from agentrt import Retry, agent, current
from tests.conftest import supervising
from tests.support import Sql, eventually

once = Retry(max_attempts=1)


@agent(retry=once)
async def hang() -> None:
    await asyncio.Event().wait()


@agent(retry=once)
async def branch() -> None:
    await hang.ask()


@agent(retry=once)
async def top() -> None:
    await asyncio.gather(
        branch.ask(), hang["busy"].ask(), hang["busy"].ask(), hang.options(delay_s=3_600).ask(), return_exceptions=True
    )


async def _grown(sql: Sql) -> bool:
    states = await sql.rows("select status, count(*) as count from agentrt.jobs group by 1")
    by_state = {row["status"]: row["count"] for row in states}
    waiting = by_state.pop("running", 0) + by_state.pop("parked", 0)
    return waiting == 4 and by_state == {"blocked": 1, "scheduled": 1}


@pytest.mark.parametrize("warm_s", [60.0, 0.1])
async def test_a_cancel_ends_the_job_and_all_it_waits_for(
    database: str, client: agentrt.Client, sql: Sql, warm_s: float
) -> None:
    async with supervising(database, top, branch, hang, warm_s=warm_s):
        job = await top.send()
        await eventually(lambda: _grown(sql))
        if warm_s < 1:
            await sql.until(job.id, "parked")
        assert await job.cancel("enough")
        await sql.until_none_unfinished()
    ended = await sql.rows("select state, reason, last_error from agentrt.history")
    assert len(ended) == 6
    assert {(row["state"], row["reason"]) for row in ended} == {("cancelled", "cancelled")}
    assert all("enough" in row["last_error"] for row in ended)


async def test_a_job_can_be_cancelled_alone(database: str, client: agentrt.Client, sql: Sql) -> None:
    async with supervising(database, top, branch, hang, drain_s=0):
        job = await top.send()
        await eventually(lambda: _grown(sql))
        await job.cancel("alone", tree=False)
        await sql.until(job.id, "cancelled")
        assert await sql.value("select count(*) from agentrt.jobs") == 5


async def test_a_cancelled_parked_job_is_final_when_the_answer_comes_late(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    go_on = asyncio.Event()

    @agent(retry=once)
    async def gated() -> str:
        await go_on.wait()
        return "late"

    @agent(retry=once)
    async def asker() -> str:
        return await gated.ask()

    async with supervising(database, asker, gated, warm_s=0.1):
        job = await asker.send()
        await sql.until(job.id, "parked")
        await job.cancel("enough", tree=False)
        go_on.set()
        await sql.until_none_unfinished()
        assert await sql.state(job.id) == "cancelled"
        assert not await job.cancel("twice")


async def test_a_deadline_stops_what_runs_wakes_what_is_parked_and_starts_nothing_after_it(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    started: list[str] = []

    @agent(retry=once)
    async def leaf(kind: str) -> None:
        started.append(kind)
        await asyncio.Event().wait()

    @agent(retry=once)
    async def parent() -> None:
        late = leaf.options(delay_s=3_600).ask("late")
        await asyncio.gather(leaf.ask("at once"), late, return_exceptions=True)

    async with supervising(database, parent, leaf, warm_s=0.1):
        job = await parent.options(deadline_s=4.0).send()
        await sql.until(job.id, "parked")
        with pytest.raises(agentrt.JobCancelled, match="deadline"):
            await job.result(timeout_s=20)
        await sql.until_none_unfinished()
    assert started == ["at once"]
    ended = await sql.rows("select agent, state, reason from agentrt.history order by id")
    assert [tuple(row.values()) for row in ended] == [
        ("parent", "cancelled", "deadline"),
        ("leaf", "cancelled", "deadline"),
        ("leaf", "cancelled", "deadline"),
    ]


async def test_a_job_whose_deadline_has_passed_is_not_started(database: str, client: agentrt.Client, sql: Sql) -> None:
    started: list[int] = []

    @agent(retry=once)
    async def late() -> None:
        started.append(current().job_id)

    job = await late.options(deadline_s=0.05).send()

    async def passed() -> bool:
        return bool(await sql.value("select deadline < agentrt.agentrt_now() from agentrt.jobs"))

    await eventually(passed)
    async with supervising(database, late):
        with pytest.raises(agentrt.JobCancelled, match="deadline"):
            await job.result(timeout_s=20)
    assert started == []


async def test_a_tree_that_never_ends_is_stopped_at_its_hundredth_hop(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    @agent(retry=once)
    async def deeper() -> Any:
        return await deeper.ask()

    async with supervising(database, deeper, slots=4):
        job = await deeper.send()
        with pytest.raises(agentrt.JobFailed):
            await job.result(timeout_s=60)
    (last,) = await sql.rows("select hops, last_error from agentrt.history where reason = 'hops'")
    assert last["hops"] == 100
    assert " → … → " in last["last_error"]  # the way, its ends
    assert f"deeper ({job.id}) → " in last["last_error"]
    assert "100" in last["last_error"]
    assert await sql.value("select count(*) from agentrt.history") == 101
