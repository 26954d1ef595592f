"""results: how jobs ended; who asks before the end is told of it."""

from __future__ import annotations

import asyncio

from agentrt.model import Result, State
from agentrt.store import Store
from tests.conftest import Clock
from tests.store.verbs import (
    claim,
    claim_one,
    elsewhere,
    fail,
    give_back,
    lapse,
    listening,
    message,
    oops,
    others,
    policy,
    running_one,
    send,
    send_one,
    succeed,
)


async def test_a_job_that_does_not_exist_has_no_result(store: Store) -> None:
    job_id = await send_one(store)
    assert await store.results([]) == []
    assert [result.id for result in await store.results([4711, job_id])] == [job_id]


async def test_a_job_that_succeeded_has_its_result_to_the_letter(store: Store) -> None:
    job_id = await send_one(store)
    await succeed(store, await claim_one(store), result='{"z":1e17,"a":null}')
    assert await store.results([job_id]) == [Result(job_id, "a", State.succeeded, '{"z":1e17,"a":null}', None, None)]


async def test_a_job_that_failed_tells_why(store: Store) -> None:
    job_id = await send_one(store)
    await fail(store, await claim_one(store))
    assert await store.results([job_id]) == [
        Result(job_id, "a", State.failed, None, "error", "ValueError: no such otter")
    ]


async def test_a_job_that_was_cancelled_tells_why(store: Store) -> None:
    job_id = await send_one(store)
    await store.cancel(job_id, "no longer needed")
    assert await store.results([job_id]) == [
        Result(job_id, "a", State.cancelled, None, "cancelled", "no longer needed")
    ]


async def test_an_unfinished_job_has_a_state_and_no_result(store: Store, clock: Clock) -> None:
    ids = await send(store, message("b"), message(delay_s=9.0), message(key="k"), message(key="k"))
    await claim_one(store)
    results = sorted(await store.results(ids), key=lambda result: result.id)
    assert [result.state for result in results] == [State.ready, State.scheduled, State.running, State.blocked]
    assert {result.result for result in results} == {None}
    assert not any(result.state.final for result in results)


async def test_to_ask_does_not_change_what_is_done_with_the_job(store: Store) -> None:
    first, second = await send(store, message(), message())
    job = (await claim(store, most=1))[0]
    for _ in range(3):
        await store.results([second, first])
    assert (await claim_one(store)).id == second
    assert await succeed(store, job) == {first}


async def test_whoever_asked_before_the_end_is_told_of_it(store: Store, clock: Clock) -> None:
    ids = await send(store, *(message(str(n)) for n in range(4)))
    await store.results(ids)
    async with listening(store) as ears:
        await succeed(store, await claim_one(store, "0"))
        await ears.until("done")
        await fail(store, await claim_one(store, "1"))
        await ears.until("done")
        await store.cancel(ids[2], "no longer needed")
        await ears.until("done")
        await claim_one(store, "3", like=policy("3", max_attempts=1))
        await lapse(store, clock)
        await ears.until("done")


async def test_a_message_can_be_sent_with_the_wish_to_be_told(store: Store) -> None:
    await send_one(store, watched=True)
    async with listening(store) as ears:
        await succeed(store, await claim_one(store))
        await ears.until("done")


async def test_the_wish_to_be_told_outlives_an_attempt(store: Store) -> None:
    job_id = await send_one(store)
    await store.results([job_id])
    await give_back(store, await claim_one(store), failure=oops)
    async with listening(store) as ears:
        await succeed(store, await claim_one(store))
        await ears.until("done")


async def test_the_end_of_a_job_that_nobody_waits_for_is_not_told(store: Store) -> None:
    job = await running_one(store)
    async with listening(store) as ears:
        await succeed(store, job)
        assert "done" not in await ears.now(store)


async def test_an_end_between_the_question_and_the_wait_is_seen_by_one_of_them(store: Store) -> None:
    """Asked at the same time as the end: the answer has the end, or it is told after it."""
    ids = await send(store, *(message() for _ in range(40)))
    jobs = await claim(store, supervisor=elsewhere)
    async with others(store, 1) as (other,), listening(store) as ears:
        for job_id, job in zip(ids, jobs, strict=True):
            ears.heard.clear()
            (result,), _ = await asyncio.gather(store.results([job_id]), succeed(other, job))
            if not result.state.final:
                await ears.until("done")
            assert [each.state for each in await store.results([job_id])] == [State.succeeded]
