"""cancel: a job that nobody runs ends at once, a running one is marked; what has ended stays as it is."""

from __future__ import annotations

import asyncio

import pytest

from agentrt.model import State
from agentrt.store import Store
from tests.conftest import Clock
from tests.store.verbs import (
    claim,
    claim_one,
    fail,
    in_line,
    listening,
    message,
    others,
    record,
    row_of,
    send,
    send_one,
    state_of,
    states_of,
    succeed,
)


async def test_a_job_that_nobody_runs_is_cancelled_at_once(store: Store, clock: Clock) -> None:
    ready, delayed, head, behind = await send(
        store, message(), message(delay_s=9.0), message("b", "k"), message("b", "k")
    )
    await claim_one(store, "b")
    assert await states_of(store, [ready, delayed, behind]) == [State.ready, State.scheduled, State.blocked]
    for job_id in (ready, delayed, behind):
        assert await store.cancel(job_id, "no longer needed") == "cancelled"
        row = await row_of(store, job_id)
        assert (row["state"], row["reason"], row["last_error"]) == (State.cancelled, "cancelled", "no longer needed")
        assert row["finished_at"] is not None
    await clock.advance(10)
    assert await store.due(10) == (0, None)
    assert await claim(store) == []
    assert await state_of(store, head) == State.running


async def test_a_running_job_is_marked_and_goes_on_until_its_owner_ends_it(store: Store) -> None:
    job_id = await send_one(store)
    job = await claim_one(store)
    assert await store.cancel_requests([job_id]) == []
    assert await store.cancel(job_id, "no longer needed") == "requested"
    assert await state_of(store, job_id) == State.running
    assert await store.cancel_requests([job_id]) == [(job_id, job.fence, "no longer needed")]
    assert await record(store, job, "search#0", "1") == "1"
    assert await store.renew([(job.id, job.fence, 30.0)]) == {job_id}


async def test_the_first_reason_is_kept(store: Store) -> None:
    job_id = await send_one(store)
    await claim_one(store)
    await store.cancel(job_id, "first")
    assert await store.cancel(job_id, "second") == "requested"
    assert [reason for _, _, reason in await store.cancel_requests([job_id])] == ["first"]


async def test_cancel_requests_are_told_of_those_asked_for(store: Store) -> None:
    mine, theirs, free = await send(store, message(), message(), message())
    await claim(store, most=2)
    for job_id in (mine, theirs):
        await store.cancel(job_id, "no longer needed")
    assert [job_id for job_id, _, _ in await store.cancel_requests([mine, free, 4711])] == [mine]
    assert await store.cancel_requests([]) == []


async def test_a_job_that_ended_before_it_noticed_its_cancel_keeps_its_outcome(store: Store) -> None:
    job_id = await send_one(store)
    job = await claim_one(store)
    await store.cancel(job_id, "too late")
    assert await succeed(store, job, result="1") == {job_id}
    row = await row_of(store, job_id)
    assert (row["state"], row["result"]) == (State.succeeded, "1")


async def test_a_cancel_after_the_end_changes_nothing(store: Store) -> None:
    ended, failed, cancelled = await send(store, message("a"), message("b"), message("c"))
    await succeed(store, await claim_one(store, "a"))
    await fail(store, await claim_one(store, "b"))
    await store.cancel(cancelled, "first")
    before = [await row_of(store, job_id) for job_id in (ended, failed, cancelled)]
    answers = [await store.cancel(job_id, "too late") for job_id in (ended, failed, cancelled)]
    assert answers == ["already succeeded", "already failed", "already cancelled"]
    assert [await row_of(store, job_id) for job_id in (ended, failed, cancelled)] == before


async def test_a_job_that_does_not_exist_cannot_be_cancelled(store: Store) -> None:
    assert await store.cancel(4711, "no longer needed") is None


async def test_cancels_at_the_same_time_end_a_job_once(store: Store) -> None:
    ids = await send(store, *(message(key=f"k{n % 5}") for n in range(30)))
    async with others(store, 4) as stores:
        answers = [
            await asyncio.gather(*(each.cancel(job_id, f"{n}") for n, each in enumerate(stores))) for job_id in ids
        ]
    for answer in answers:
        assert sorted(str(each) for each in answer) == [*["already cancelled"] * 3, "cancelled"]
    assert await in_line(store) == []


async def test_of_a_cancel_and_a_claim_at_the_same_time_one_counts(store: Store) -> None:
    ids = await send(store, *(message(key=f"k{n}" if n % 2 else None) for n in range(60)))
    async with others(store, 2) as (one, two):
        jobs, answers = await asyncio.gather(
            claim(one), asyncio.gather(*((two if n % 3 else store).cancel(i, "race") for n, i in enumerate(ids)))
        )
    claimed = {job.id for job in jobs}
    for job_id, answer in zip(ids, answers, strict=True):
        assert answer == ("requested" if await state_of(store, job_id) == State.running else "cancelled")
        if answer == "cancelled":
            assert job_id not in claimed
    assert {job_id for job_id, _, _ in await store.cancel_requests(ids)} == claimed


@pytest.mark.parametrize("running", [True, False])
async def test_the_owner_of_a_running_job_is_told(store: Store, running: bool) -> None:
    job_id = await send_one(store)
    if running:
        await claim_one(store)
    async with listening(store) as ears:
        await store.results([job_id])
        await store.cancel(job_id, "no longer needed")
        await ears.until("cancel" if running else "done")


async def test_a_retried_job_has_forgotten_that_it_was_to_be_cancelled(store: Store) -> None:
    job_id = await send_one(store)
    job = await claim_one(store)
    await store.cancel(job_id, "no longer needed")
    await fail(store, job)
    await store.retry(job_id)
    await claim_one(store)
    assert await store.cancel_requests([job_id]) == []
