"""Sleeps: the moment of waking is stored."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

import agentrt
from agentrt import Retry, agent, current
from tests.conftest import supervising
from tests.support import Sql, eventually

quick = Retry(max_attempts=3, base_s=0.01, factor=1)


@pytest.mark.parametrize("verb", ["sleep", "wait_until"])
async def test_a_warm_sleep_ends_at_its_moment(database: str, client: agentrt.Client, verb: str) -> None:
    @agent(retry=quick)
    async def dozer() -> float:
        before = time.monotonic()
        if verb == "sleep":
            await agentrt.sleep(0.5)
        else:
            await agentrt.wait_until(datetime.now(UTC) + timedelta(seconds=0.5))
        return time.monotonic() - before

    async with supervising(database, dozer):
        slept = sorted([await dozer.ask() for _ in range(5)])
    assert 0.495 <= slept[0] < 1.5  # the best of them: a few ms more than it should on a quiet machine


async def test_a_rerun_sleeps_for_what_is_left_and_an_ended_sleep_not_again(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    woke: list[float] = []
    sleep_s = 3.0

    @agent(retry=quick)
    async def dozer() -> None:
        await agentrt.sleep(sleep_s)
        woke.append(time.monotonic())
        if current().attempt < 3:
            raise RuntimeError("again")

    async with supervising(database, dozer):
        await dozer.ask()
    assert len(woke) == 3
    assert woke[2] - woke[0] < sleep_s
    assert await sql.value("select count(*) from agentrt.steps") == 1


async def test_a_parked_sleep_wakes_at_its_moment_and_holds_nothing_meanwhile(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    @agent(retry=quick)
    async def dozer() -> float:
        await agentrt.sleep(1.5)
        return time.time()

    async with supervising(database, dozer, warm_s=0.1, slots=1, poll_s=600) as supervisor:
        jobs = [await dozer.send() for _ in range(5)]
        for job in jobs:
            await sql.until(job.id, "parked")

        async def nothing_runs() -> bool:
            return supervisor.running_jobs == 0

        await eventually(nothing_runs)
        due = {row["job_id"]: row["due"].timestamp() for row in await sql.rows("select job_id, due from agentrt.steps")}
        for job in jobs:
            assert -0.05 < await job.result(timeout_s=20) - due[job.id] < 15


@pytest.mark.parametrize("wrong", [-1, float("nan"), 1e12, "5"])
async def test_a_wait_that_cannot_be_is_refused(wrong: float) -> None:
    with pytest.raises(agentrt.UsageError):
        await agentrt.sleep(wrong)


async def test_a_moment_without_zone_is_refused() -> None:
    with pytest.raises(agentrt.UsageError, match="without a time zone"):
        await agentrt.wait_until(datetime(2030, 1, 1))  # noqa: DTZ001 - the fault under test
