"""retry: a job that failed or was cancelled runs again as itself, with its steps and fresh attempts."""

from __future__ import annotations

import asyncio

import pytest

from agentrt.errors import LeaseLost
from agentrt.model import Sender, Sent, State, StepMark
from agentrt.store import Store
from tests.conftest import Clock
from tests.store.verbs import (
    claim,
    claim_one,
    fail,
    give_back,
    in_line,
    listening,
    message,
    others,
    outputs,
    policy,
    record,
    row_of,
    running_one,
    send,
    send_one,
    state_of,
    states_of,
    succeed,
)


async def failed_one(store: Store, **more: object) -> int:
    job_id = await send_one(store, **more)  # type: ignore[arg-type]
    assert await fail(store, await claim_one(store)) == {job_id}
    return job_id


async def test_a_failed_job_runs_again_as_itself(store: Store) -> None:
    await send_one(store, "parent")
    parent = await claim_one(store, "parent")
    said = message(payload=b'{"x":1e17}', priority=2, step=StepMark("send:a#0"))
    (sent,) = await store.send([said], sender=Sender(parent.id, parent.fence))
    job_id = sent.id
    assert await fail(store, await claim_one(store)) == {job_id}
    created_at = (await row_of(store, job_id))["created_at"]
    assert await store.retry(job_id) == State.ready
    row = await row_of(store, job_id)
    assert (row["state"], row["attempt_count"], row["finished_at"]) == (State.ready, 0, None)
    assert (row["created_at"], row["parent"], row["last_error"]) == (created_at, parent.id, "ValueError: no such otter")
    job = await claim_one(store)
    assert (job.id, job.payload, job.priority, job.root) == (job_id, '{"x":1e17}', 2, parent.id)


async def test_a_retry_gives_fresh_attempts_under_a_higher_fence(store: Store) -> None:
    first = await running_one(store, like=policy(max_attempts=2))
    await give_back(store, first)
    last = await claim_one(store, like=policy(max_attempts=2))
    await fail(store, last)
    await store.retry(first.id)
    again = await claim_one(store, like=policy(max_attempts=7))
    assert (again.attempt, again.max_attempts) == (1, 2)
    assert again.fence > last.fence
    assert await succeed(store, last) == set()
    with pytest.raises(LeaseLost):
        await record(store, last, "search#0", "1")
    assert await succeed(store, again) == {again.id}


async def test_a_retried_job_keeps_its_recorded_steps_and_the_story_of_its_attempts(store: Store) -> None:
    job = await running_one(store)
    await record(store, job, "search#0", "1")
    await fail(store, job)
    await store.retry(job.id)
    again = await claim_one(store)
    assert outputs(again) == {"search#0": "1"}
    await fail(store, again)
    assert [row["fence"] for row in await store.attempts_of(job.id)] == [job.fence, again.fence]


async def test_a_cancelled_job_can_be_run_again(store: Store) -> None:
    job_id = await send_one(store)
    await store.cancel(job_id, "by mistake")
    assert await store.retry(job_id) == State.ready
    assert await in_line(store) == [job_id]


async def test_a_job_that_succeeded_is_not_run_again(store: Store) -> None:
    job_id = await send_one(store)
    await succeed(store, await claim_one(store), result="1")
    before = await row_of(store, job_id)
    assert await store.retry(job_id) == State.succeeded
    assert await row_of(store, job_id) == before
    assert await claim(store) == []


async def test_a_job_that_waits_for_its_moment_runs_at_once(store: Store, clock: Clock) -> None:
    job_id = await send_one(store, delay_s=3_600.0)
    assert await store.retry(job_id) == State.ready
    assert await in_line(store) == [job_id]
    assert await store.due(10) == (0, None)


async def test_a_job_that_waits_for_its_next_attempt_runs_at_once_as_that_attempt(store: Store) -> None:
    await send_one(store)
    await give_back(store, await claim_one(store), delay_s=3_600.0)
    job_id = (await store.jobs(state="scheduled", agent=None, key=None, limit=2))[0]["id"]
    assert await store.retry(job_id) == State.ready
    assert (await claim_one(store)).attempt == 2


async def test_an_unfinished_job_is_left_as_it_is(store: Store) -> None:
    ids = await send(store, message("b"), message(key="k"), message(key="k"))
    await claim_one(store)
    expected = [State.ready, State.running, State.blocked]
    before = [await row_of(store, job_id) for job_id in ids]
    assert [await store.retry(job_id) for job_id in ids] == expected
    assert [await row_of(store, job_id) for job_id in ids] == before


async def test_a_job_that_does_not_exist_cannot_be_retried(store: Store) -> None:
    assert await store.retry(4711) is None


async def test_a_retried_job_goes_to_the_end_of_its_mailbox(store: Store) -> None:
    failed, second, third = await send(store, *(message(key="k") for _ in range(3)))
    await fail(store, await claim_one(store))
    assert await store.retry(failed) == State.blocked
    assert await states_of(store, [failed, second, third]) == [State.blocked, State.ready, State.blocked]
    assert await in_line(store) == [second, third, failed]


async def test_retries_at_the_same_time_make_one_job(store: Store) -> None:
    ids = [await failed_one(store, key=f"k{n}" if n % 2 else None) for n in range(10)]
    async with others(store, 4) as stores:
        for job_id in ids:
            assert set(await asyncio.gather(*(each.retry(job_id) for each in stores))) == {State.ready}
    assert sorted(row["id"] for row in await store.jobs(state=None, agent=None, key=None, limit=50)) == ids
    assert await in_line(store) == ids


async def test_a_retried_job_is_in_the_books_once(store: Store) -> None:
    job_id = await failed_one(store)
    for _ in range(3):
        await store.retry(job_id)
        assert len(await store.jobs(state=None, agent=None, key=None, limit=10)) == 1
        await fail(store, await claim_one(store))
    assert len(await store.jobs(state=None, agent=None, key=None, limit=10)) == 1
    await store.retry(job_id)
    await succeed(store, await claim_one(store))
    assert [result.state for result in await store.results([job_id])] == [State.succeeded]


async def test_a_retried_job_is_still_found_by_its_dedup_key(store: Store) -> None:
    job_id = await failed_one(store, dedup="d")
    await store.retry(job_id)
    assert await store.send([message(dedup="d")]) == [Sent(job_id, existed=True)]
    assert await in_line(store) == [job_id]


async def test_the_end_of_a_retried_job_is_told_to_those_who_wait_for_it(store: Store) -> None:
    job_id = await failed_one(store)
    await store.retry(job_id)
    async with listening(store) as ears:
        assert [result.state for result in await store.results([job_id])] == [State.ready]
        await succeed(store, await claim_one(store))
        await ears.until("done")


async def test_a_retry_wakes_a_claimer(store: Store) -> None:
    job_id = await failed_one(store)
    async with listening(store) as ears:
        await store.retry(job_id)
        await ears.until("ready")
        assert await state_of(store, job_id) == State.ready
