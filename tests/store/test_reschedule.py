"""reschedule: the owner of a job gives it back, at once or for later, with or without its attempt."""

from __future__ import annotations

import pytest

from agentrt.model import Failure, Reschedule, State
from agentrt.store import Store
from tests.conftest import Clock
from tests.store.verbs import (
    claim,
    claim_one,
    elsewhere,
    fail,
    give_back,
    lapse,
    lease_s,
    message,
    oops,
    outputs,
    record,
    row_of,
    running_one,
    send,
    send_one,
    state_of,
    states_of,
    succeed,
)


async def test_a_job_given_back_without_delay_is_ready_at_once(store: Store) -> None:
    job = await running_one(store)
    assert await give_back(store, job) == {job.id}
    row = await row_of(store, job.id)
    assert (row["state"], row["owner_id"], row["lease_expires"]) == (State.ready, None, None)
    assert (await claim_one(store, supervisor=elsewhere)).fence > job.fence


async def test_a_job_given_back_for_later_waits_for_its_moment(store: Store, clock: Clock) -> None:
    job = await running_one(store)
    await give_back(store, job, delay_s=10.0, failure=oops)
    assert await state_of(store, job.id) == State.scheduled
    assert (await store.due(10))[0] == 0
    assert await claim(store) == []
    await clock.advance(11)
    assert (await store.due(10))[0] == 1
    assert (await claim_one(store)).id == job.id


async def test_a_delay_begins_when_the_job_is_given_back(store: Store, clock: Clock) -> None:
    job = await running_one(store)
    await clock.advance(1_000)
    await give_back(store, job, delay_s=10.0)
    assert (await store.due(10))[0] == 0


async def test_an_attempt_that_does_not_count_leaves_the_number_of_attempts(store: Store) -> None:
    await send_one(store)
    attempts = []
    for counts in (False, False, True, False, True):
        job = await claim_one(store)
        attempts.append(job.attempt)
        await give_back(store, job, counts=counts)
    assert attempts == [1, 1, 1, 2, 2]
    assert (await claim_one(store)).attempt == 3


async def test_an_attempt_that_lost_its_lease_cannot_reschedule_the_job(store: Store, clock: Clock) -> None:
    late = await running_one(store)
    await lapse(store, clock)
    assert await give_back(store, late, delay_s=60.0, failure=oops) == set()
    assert await state_of(store, late.id) == State.ready
    current = await claim_one(store)
    assert await give_back(store, late, delay_s=60.0, counts=False, failure=oops) == set()
    row = await row_of(store, late.id)
    assert (row["state"], row["attempt_count"]) == (State.running, 2)
    assert [attempt["reason"] for attempt in await store.attempts_of(late.id)] == ["crashed"]
    assert await succeed(store, current) == {current.id}


async def test_a_late_reschedule_does_not_take_the_lease_of_the_next_attempt(store: Store, clock: Clock) -> None:
    late = await running_one(store)
    await lapse(store, clock)
    current = await claim_one(store)
    assert await store.renew([(current.id, current.fence, 1_000.0)]) == {current.id}
    assert await give_back(store, late) == set()
    await clock.advance(lease_s * 2)
    assert (await store.sweep(10)).made_ready == []


async def test_a_job_can_be_given_back_once(store: Store) -> None:
    job = await running_one(store)
    assert await give_back(store, job, counts=False) == {job.id}
    assert await give_back(store, job, counts=False) == set()
    assert await succeed(store, job) == set()
    assert (await claim_one(store)).attempt == 1


async def test_of_a_batch_those_are_accepted_that_are_still_owned(store: Store) -> None:
    await send(store, message(), message(), message())
    one, two, three = await claim(store)
    await succeed(store, two)
    assert await give_back(store, one, two, three) == {one.id, three.id}
    assert await states_of(store, [one.id, two.id, three.id]) == [State.ready, State.succeeded, State.ready]


async def test_one_batch_may_hold_different_delays_and_reasons(store: Store, clock: Clock) -> None:
    await send(store, message(), message("a", "k"), message())
    one, two, three = await claim(store)
    outcomes = [
        Reschedule(one.id, one.fence, 0.0, counts=False),
        Reschedule(two.id, two.fence, 60.0, counts=True, failure=oops),
        Reschedule(three.id, three.fence, 5.0, counts=False, failure=Failure("later", "RetryAfter", "rate limit")),
    ]
    assert await store.reschedule(outcomes, keyed=True, limited=False) == {one.id, two.id, three.id}
    rows = [await row_of(store, job.id) for job in (one, two, three)]
    assert [row["state"] for row in rows] == [State.ready, State.scheduled, State.scheduled]
    assert [row["attempt_count"] for row in rows] == [0, 1, 0]
    assert [row["last_error"] for row in rows] == [None, "ValueError: no such otter", "RetryAfter: rate limit"]
    assert 4.0 < (await store.due(10))[1] <= 5.0  # type: ignore[operator] # something is scheduled


async def test_every_failed_attempt_is_kept(store: Store) -> None:
    await send_one(store)
    for number in range(3):
        job = await claim_one(store)
        await give_back(store, job, failure=Failure("error", "ValueError", f"number {number}", f"trace {number}"))
    attempts = await store.attempts_of(job.id)
    assert [(row["attempt"], row["text"], row["traceback"]) for row in attempts] == [
        (number + 1, f"number {number}", f"trace {number}") for number in range(3)
    ]
    assert (await row_of(store, job.id))["last_error"] == "ValueError: number 2"


async def test_a_release_without_failure_keeps_the_last_error_and_adds_no_attempt(store: Store) -> None:
    await send_one(store)
    await give_back(store, await claim_one(store), failure=oops)
    job = await claim_one(store)
    await give_back(store, job, counts=False)
    assert (await row_of(store, job.id))["last_error"] == "ValueError: no such otter"
    assert len(await store.attempts_of(job.id)) == 1


async def test_recorded_steps_outlive_the_attempt(store: Store) -> None:
    job = await running_one(store)
    await record(store, job, "search#0", "1")
    await give_back(store, job)
    assert outputs(await claim_one(store)) == {"search#0": "1"}


@pytest.mark.parametrize("delay_s", [0.0, 60.0])
@pytest.mark.parametrize("key", [None, "k"])
async def test_a_job_whose_cancel_was_asked_for_is_not_given_back_but_cancelled(
    store: Store, delay_s: float, key: str | None
) -> None:
    await send_one(store, key=key)
    job = await claim_one(store)
    assert await store.cancel(job.id, "no longer needed") == "requested"
    assert await give_back(store, job, delay_s=delay_s, failure=oops, loose=True) == {job.id}
    row = await row_of(store, job.id)
    assert (row["state"], row["reason"], row["last_error"]) == (State.cancelled, "cancelled", "no longer needed")
    assert (await store.due(10)) == (0, None)


async def test_a_renewed_lease_goes_when_the_job_is_given_back(store: Store, clock: Clock) -> None:
    job = await running_one(store)
    await store.renew([(job.id, job.fence, 1_000.0)])
    await give_back(store, job)
    again = await claim_one(store)
    assert (await lapse(store, clock)).made_ready == [again.id]


async def test_a_final_end_after_a_reschedule_needs_the_next_fence(store: Store) -> None:
    job = await running_one(store)
    await give_back(store, job)
    assert await fail(store, job) == set()
    again = await claim_one(store)
    assert await fail(store, job) == set()
    assert await fail(store, again) == {again.id}
