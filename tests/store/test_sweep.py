"""sweep: whatever a dead process held is taken back, its attempt counted, and nothing else is touched."""

from __future__ import annotations

import asyncio

import pytest

from agentrt.model import State, SweepReport
from agentrt.store import Store
from tests.conftest import Clock
from tests.store.verbs import (
    claim,
    claim_one,
    elsewhere,
    give_back,
    here,
    in_line,
    lapse,
    lease_s,
    message,
    others,
    policy,
    row_of,
    running_one,
    send,
    send_one,
    state_of,
    states_of,
    succeed,
)


async def test_a_job_whose_lease_ran_out_is_ready_again(store: Store, clock: Clock) -> None:
    job_id = await send_one(store)
    job = await claim_one(store)
    assert await lapse(store, clock) == SweepReport([job_id], [], None)
    row = await row_of(store, job_id)
    assert (row["state"], row["owner_id"], row["lease_expires"]) == (State.ready, None, None)
    again = await claim_one(store, supervisor=elsewhere)
    assert (again.id, again.attempt) == (job_id, 2)
    assert again.fence > job.fence


async def test_a_lease_that_lasts_is_left_alone(store: Store, clock: Clock) -> None:
    job_id = await send_one(store)
    job = await claim_one(store)
    await clock.advance(lease_s - 1)
    report = await store.sweep(10)
    assert (report.made_ready, report.ended) == ([], [])
    assert (await row_of(store, job_id))["fence"] == job.fence


async def test_a_crash_is_an_attempt_with_its_reason(store: Store, clock: Clock) -> None:
    job = await running_one(store)
    await lapse(store, clock)
    (attempt,) = await store.attempts_of(job.id)
    assert (attempt["attempt"], attempt["fence"], attempt["reason"], attempt["supervisor"]) == (
        1,
        job.fence,
        "crashed",
        here,
    )
    assert "Crashed" in (await row_of(store, job.id))["last_error"]


async def test_a_job_that_kills_its_process_every_time_ends_as_failed(store: Store, clock: Clock) -> None:
    job_id = await send_one(store)
    for attempt in (1, 2, 3):
        job = await claim_one(store, like=policy(max_attempts=3))
        assert job.attempt == attempt
        report = await lapse(store, clock)
    assert report == SweepReport([], [job_id], None)
    row = await row_of(store, job_id)
    assert (row["state"], row["reason"], row["attempt_count"]) == (State.failed, "crashed", 3)
    assert [each["attempt"] for each in await store.attempts_of(job_id)] == [1, 2, 3]
    assert await succeed(store, job) == set()


async def test_attempts_that_were_not_counted_do_not_use_up_a_crashing_job(store: Store, clock: Clock) -> None:
    await send_one(store, max_attempts=1)
    for _ in range(3):
        await give_back(store, await claim_one(store), counts=False)
    await claim_one(store)
    assert len((await lapse(store, clock)).ended) == 1


async def test_a_lost_job_whose_cancel_was_asked_for_ends_as_cancelled(store: Store, clock: Clock) -> None:
    job_id = await send_one(store)
    await claim_one(store)
    assert await store.cancel(job_id, "no longer needed") == "requested"
    assert await lapse(store, clock) == SweepReport([], [job_id], None)
    row = await row_of(store, job_id)
    assert (row["state"], row["reason"], row["last_error"]) == (State.cancelled, "cancelled", "no longer needed")


async def test_a_renewed_lease_is_not_swept(store: Store, clock: Clock) -> None:
    renewed, silent = await send(store, message(), message())
    jobs = {job.id: job for job in await claim(store)}
    await clock.advance(lease_s - 1)
    await store.renew([(renewed, jobs[renewed].fence, lease_s)])
    await clock.advance(2)
    assert (await store.sweep(10)).made_ready == [silent]


async def test_renewed_leases_do_not_stand_in_the_way_of_a_lost_one(store: Store, clock: Clock) -> None:
    *_, lost = await send(store, *(message() for _ in range(21)))
    renewed = [job for job in await claim(store) if job.id != lost]
    await store.renew([(job.id, job.fence, 1_000.0) for job in renewed])
    assert (await lapse(store, clock, 5)).made_ready == [lost]


async def test_what_a_dead_supervisor_held_is_taken_back_while_its_leases_last(store: Store, clock: Clock) -> None:
    lost, kept = await send(store, message(), message("b"))
    job = await claim_one(store, supervisor=here)
    await claim_one(store, "b", supervisor=elsewhere)
    await store.renew([(job.id, job.fence, 1_000.0)])
    report = await store.sweep(10, here)
    assert (report.made_ready, report.ended) == ([lost], [])
    assert await states_of(store, [lost, kept]) == [State.ready, State.running]
    assert await store.renew([(job.id, job.fence, 1_000.0)]) == set()


async def test_a_sweep_takes_no_more_than_its_limit(store: Store, clock: Clock) -> None:
    ids = await send(store, *(message() for _ in range(25)))
    await claim(store)
    await clock.advance(lease_s + 1)
    swept = []
    for expected in (10, 10, 5, 0):
        report = await store.sweep(10)
        assert len(report.made_ready) == expected
        swept += report.made_ready
    assert sorted(swept) == ids


async def test_sweeps_at_the_same_time_take_each_job_back_once(store: Store, clock: Clock) -> None:
    ids = await send(store, *(message(key=f"k{n}" if n % 2 else None) for n in range(60)))
    await claim(store)
    await clock.advance(lease_s + 1)
    async with others(store, 6) as stores:
        reports = await asyncio.gather(*(each.sweep(50) for each in stores))
    left = await store.sweep(100)
    swept = [job_id for report in [*reports, left] for job_id in report.made_ready]
    assert sorted(swept) == ids
    for job_id in ids:
        row = await row_of(store, job_id)
        assert (row["state"], row["attempt_count"]) == (State.ready, 1)
        assert len(await store.attempts_of(job_id)) == 1


async def test_of_a_sweep_and_an_end_at_the_same_time_one_counts(store: Store, clock: Clock) -> None:
    ids = await send(store, *(message(key=f"k{n}" if n % 2 else None) for n in range(60)))
    jobs = await claim(store)
    await clock.advance(lease_s + 1)
    async with others(store, 3) as stores:
        ended, reports = await asyncio.gather(
            succeed(store, *jobs), asyncio.gather(*(each.sweep(20) for each in stores))
        )
    swept = [job_id for report in reports for job_id in report.made_ready]
    assert len(swept) == len(set(swept))
    assert ended.isdisjoint(swept)
    assert ended | set(swept) == set(ids)
    for job_id in ids:
        assert await state_of(store, job_id) == (State.succeeded if job_id in ended else State.ready)


async def test_a_sweep_tells_when_the_next_lease_ends(store: Store, clock: Clock) -> None:
    assert (await store.sweep(10)).next_s is None
    await send(store, message(), message("b"))
    assert (await store.sweep(10)).next_s is None
    job = await claim_one(store, like=policy(lease=30.0))
    assert (await store.sweep(10)).next_s == pytest.approx(30.0, abs=5)
    await claim_one(store, "b", like=policy("b", lease=500.0))
    await store.renew([(job.id, job.fence, 100.0)])
    assert (await store.sweep(10)).next_s == pytest.approx(100.0, abs=5)
    await succeed(store, job)
    assert (await store.sweep(10)).next_s == pytest.approx(500.0, abs=5)


async def test_jobs_that_nobody_runs_are_not_swept(store: Store, clock: Clock) -> None:
    ids = await send(store, message(), message(delay_s=1.0), message(key="k"), message(key="k"))
    before = await states_of(store, ids)
    await clock.advance(100_000)
    assert await store.sweep(10, here) == SweepReport([], [], None)
    assert await states_of(store, ids) == before


async def test_a_job_taken_back_goes_behind_those_that_wait(store: Store, clock: Clock) -> None:
    first, second = await send(store, message(), message())
    await claim(store, most=1)
    await lapse(store, clock)
    assert await in_line(store) == [second, first]


async def test_what_a_sweep_made_ready_can_be_claimed_at_once(store: Store, clock: Clock) -> None:
    await send_one(store, delay_s=60.0)
    await clock.advance(61)
    await store.due(10)
    await claim_one(store)
    await lapse(store, clock)
    await claim_one(store)
