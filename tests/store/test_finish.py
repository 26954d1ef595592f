"""finish: a job ends once, by the attempt that owns it, and is never claimed again."""

from __future__ import annotations

import asyncio

import pytest

from agentrt.model import Claimed, Failure, Finish, State
from agentrt.store import Store
from tests.conftest import Clock
from tests.store.verbs import (
    claim,
    claim_one,
    elsewhere,
    end,
    fail,
    give_back,
    here,
    lapse,
    lease_s,
    listening,
    message,
    oops,
    others,
    policy,
    row_of,
    running_one,
    send,
    send_one,
    state_of,
    states_of,
    succeed,
    wanted,
)


async def lost(store: Store, clock: Clock) -> Claimed:
    """An attempt whose lease ran out; its job was taken back."""
    job = await running_one(store)
    assert (await lapse(store, clock)).made_ready == [job.id]
    return job


async def test_a_finished_job_keeps_its_result_and_is_not_claimed_again(store: Store) -> None:
    job_id = await send_one(store, payload=b'{"x":1}')
    job = await claim_one(store)
    assert await succeed(store, job, result='{"z":1e17,"a":null}') == {job_id}
    row = await row_of(store, job_id)
    assert (row["state"], row["status"], row["result"]) == (State.succeeded, State.succeeded, '{"z":1e17,"a":null}')
    assert row["finished_at"] is not None
    assert (row["payload"], row["attempt_count"], row["reason"]) == ('{"x":1}', 1, None)
    assert await claim(store) == []


@pytest.mark.parametrize("result", ["null", "false", "0", '""', "[]"])
async def test_a_result_that_says_nothing_is_a_result(store: Store, result: str) -> None:
    job_id = await send_one(store)
    await succeed(store, await claim_one(store), result=result)
    assert (await row_of(store, job_id))["result"] == result


async def test_an_attempt_that_lost_its_lease_cannot_finish_the_job(store: Store, clock: Clock) -> None:
    late = await lost(store, clock)
    current = await claim_one(store, supervisor=elsewhere)
    assert await succeed(store, late, result='"late"') == set()
    assert await state_of(store, late.id) == State.running
    assert await succeed(store, current, result='"ok"') == {current.id}
    assert (await row_of(store, late.id))["result"] == '"ok"'


async def test_the_fence_decides_also_when_the_same_supervisor_has_the_job_again(store: Store, clock: Clock) -> None:
    late = await lost(store, clock)
    current = await claim_one(store, supervisor=here)
    assert current.fence > late.fence
    assert await fail(store, late) == set()
    assert await succeed(store, current) == {current.id}


async def test_a_job_that_was_taken_back_cannot_be_finished_even_before_it_is_claimed_again(
    store: Store, clock: Clock
) -> None:
    late = await lost(store, clock)
    assert await succeed(store, late) == set()
    assert await state_of(store, late.id) == State.ready


async def test_a_late_end_does_not_take_the_lease_of_the_next_attempt(store: Store, clock: Clock) -> None:
    late = await lost(store, clock)
    current = await claim_one(store)
    assert await store.renew([(current.id, current.fence, 1_000.0)]) == {current.id}
    assert await succeed(store, late) == set()
    await clock.advance(lease_s * 2)
    assert (await store.sweep(10)).made_ready == []


async def test_a_lease_that_ran_out_is_good_until_somebody_takes_the_job_back(store: Store, clock: Clock) -> None:
    job = await running_one(store)
    await clock.advance(lease_s * 100)
    assert await succeed(store, job) == {job.id}


async def test_the_first_end_of_an_attempt_counts(store: Store) -> None:
    job = await running_one(store)
    assert await succeed(store, job, result='"first"') == {job.id}
    assert await succeed(store, job, result='"second"') == set()
    assert await fail(store, job) == set()
    row = await row_of(store, job.id)
    assert (row["state"], row["result"]) == (State.succeeded, '"first"')


async def test_ends_of_one_attempt_at_the_same_time_are_one(store: Store) -> None:
    await send(store, *(message() for _ in range(20)))
    jobs = await claim(store)
    async with others(store, 4) as stores:
        answers = await asyncio.gather(*(succeed(each, *jobs, result=f"{n}") for n, each in enumerate(stores)))
    assert sorted(job_id for answer in answers for job_id in answer) == [job.id for job in jobs]
    for job in jobs:
        (winner,) = [n for n, answer in enumerate(answers) if job.id in answer]
        assert (await row_of(store, job.id))["result"] == f"{winner}"


async def test_of_a_batch_those_are_accepted_that_are_still_owned(store: Store, clock: Clock) -> None:
    late = await lost(store, clock)
    await send(store, message(), message(), message())
    current, a, b, c = await claim(store)
    assert current.id == late.id or late.id in {a.id, b.id, c.id}
    mine = [job for job in (current, a, b, c) if job.id != late.id]
    assert await succeed(store, mine[0], late, mine[1]) == {mine[0].id, mine[1].id}
    assert await states_of(store, [late.id, mine[2].id]) == [State.running] * 2


@pytest.mark.parametrize("late_first", [True, False])
@pytest.mark.parametrize("claims", [True, False], ids=["turn", "finish"])
async def test_of_two_attempts_of_a_job_that_end_in_one_batch_the_one_that_lost_it_leaves_nothing(
    store: Store, clock: Clock, claims: bool, late_first: bool
) -> None:
    late = await running_one(store, key="k")
    assert (await lapse(store, clock)).made_ready == [late.id]
    current = await claim_one(store)
    ends = [
        Finish(late.id, late.fence, State.failed, failure=oops, key_state='{"by":"late"}'),
        Finish(current.id, current.fence, State.succeeded, '"ok"'),
    ]
    outcomes = ends if late_first else ends[::-1]
    before = await store.attempts_of(late.id)  # the one that was swept
    if claims:
        await store.turn(outcomes, wanted(here, [(policy(), 1)], 1), keyed=["a"], limited=False)
    else:
        await end(store, *outcomes)
    row = await row_of(store, late.id)
    assert (row["state"], row["result"], row["attempt_count"]) == (State.succeeded, '"ok"', 2)
    assert oops.text not in (row["last_error"] or "")
    assert await store.attempts_of(late.id) == before
    await send_one(store, key="k")
    assert (await claim_one(store)).key_state is None


async def test_a_job_that_does_not_exist_is_not_finished(store: Store) -> None:
    assert await end(store, Finish(4711, 1, State.succeeded, "null")) == set()
    assert await store.job(4711) is None


async def test_a_job_that_nobody_claimed_cannot_be_finished(store: Store) -> None:
    job_id = await send_one(store)
    assert await end(store, Finish(job_id, 0, State.succeeded, "null")) == set()
    assert await state_of(store, job_id) == State.ready


async def test_one_batch_may_hold_every_way_to_end(store: Store) -> None:
    ids = await send(store, message(), message(), message())
    one, two, three = await claim(store)
    reason = Failure("cancelled", "Cancelled", "no longer needed")
    outcomes = [
        Finish(one.id, one.fence, State.succeeded, "1"),
        Finish(two.id, two.fence, State.failed, failure=oops),
        Finish(three.id, three.fence, State.cancelled, failure=reason),
    ]
    assert await end(store, *outcomes) == set(ids)
    rows = [await row_of(store, job_id) for job_id in ids]
    assert [row["state"] for row in rows] == [State.succeeded, State.failed, State.cancelled]
    assert [row["reason"] for row in rows] == [None, "error", "cancelled"]
    assert [row["last_error"] for row in rows] == [None, "ValueError: no such otter", "Cancelled: no longer needed"]


async def test_a_failed_job_keeps_what_happened_in_its_attempts(store: Store) -> None:
    first = await running_one(store)
    await give_back(store, first, failure=Failure("timeout", "Timeout", "took 9 s"))
    second = await claim_one(store, supervisor=elsewhere)
    await fail(store, second)
    attempts = await store.attempts_of(first.id)
    assert [(row["attempt"], row["fence"], row["reason"], row["supervisor"]) for row in attempts] == [
        (1, first.fence, "timeout", here),
        (2, second.fence, "error", elsewhere),
    ]
    assert (attempts[1]["kind"], attempts[1]["text"], attempts[1]["traceback"]) == (
        oops.kind,
        oops.text,
        oops.traceback,
    )
    assert all(row["claimed_at"] <= row["ended_at"] for row in attempts)


async def test_an_attempt_that_succeeded_leaves_no_failure(store: Store) -> None:
    job = await running_one(store)
    await succeed(store, job)
    assert await store.attempts_of(job.id) == []


async def test_a_success_after_failures_still_tells_the_last_of_them(store: Store) -> None:
    await send_one(store)
    await give_back(store, await claim_one(store), failure=oops)
    job = await claim_one(store)
    await succeed(store, job)
    assert (await row_of(store, job.id))["last_error"] == "ValueError: no such otter"


async def test_an_end_whose_answer_was_lost_can_be_asked_for(store: Store, clock: Clock) -> None:
    late = await lost(store, clock)
    current = await claim_one(store)
    pairs = [(late.id, late.fence), (current.id, current.fence)]
    assert await store.finished_by(pairs) == set()
    await succeed(store, current)
    assert await succeed(store, current) == set()
    assert await store.finished_by(pairs) == {current.id}
    assert await store.finished_by([(late.id, late.fence)]) == set()


async def test_the_end_of_a_job_of_a_limited_agent_is_news_to_all(store: Store) -> None:
    await send(store, message(), message())
    first, second = await claim(store)
    async with listening(store) as ears:
        for job, limited in ((first, True), (second, False)):
            assert await store.finish([Finish(job.id, job.fence, State.succeeded, "1")], keyed=False, limited=limited)
            assert ("ready" in await ears.now(store)) is limited


async def test_an_unkeyed_batch_may_be_finished_without_looking_for_keys(store: Store) -> None:
    await send(store, message(), message())
    jobs = await claim(store)
    outcomes = [Finish(job.id, job.fence, State.succeeded, "1") for job in jobs]
    assert await store.finish(outcomes, keyed=False, limited=False) == {job.id for job in jobs}
