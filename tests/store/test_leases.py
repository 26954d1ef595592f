"""renew: a lease lasts as long as its owner renews it, and only its owner can."""

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
    give_back,
    lapse,
    lease_s,
    message,
    others,
    row_of,
    running_one,
    send,
    state_of,
    succeed,
)


async def test_a_renewed_lease_outlasts_the_first_one(store: Store, clock: Clock) -> None:
    job = await running_one(store)
    for _ in range(5):
        await clock.advance(lease_s - 1)
        assert await store.renew([(job.id, job.fence, lease_s)]) == {job.id}
        assert (await store.sweep(10)).made_ready == []
    assert await succeed(store, job) == {job.id}


async def test_a_renewed_lease_ends_too(store: Store, clock: Clock) -> None:
    job = await running_one(store)
    await clock.advance(lease_s / 2)
    await store.renew([(job.id, job.fence, lease_s)])
    assert (await lapse(store, clock)).made_ready == [job.id]


async def test_a_renewal_counts_from_the_moment_it_is_made(store: Store, clock: Clock) -> None:
    job = await running_one(store)
    await clock.advance(20)
    await store.renew([(job.id, job.fence, 30.0)])
    row = await row_of(store, job.id)
    assert (row["lease_expires"] - row["claimed_at"]).total_seconds() == pytest.approx(50, abs=5)


async def test_a_renewal_never_shortens_a_lease(store: Store, clock: Clock) -> None:
    job = await running_one(store)
    assert await store.renew([(job.id, job.fence, 1.0)]) == {job.id}
    await clock.advance(lease_s - 5)
    assert (await store.sweep(10)).made_ready == []


async def test_none_to_renew_is_none_renewed(store: Store) -> None:
    assert await store.renew([]) == set()


async def test_those_are_renewed_that_are_still_owned(store: Store, clock: Clock) -> None:
    ids = await send(store, *(message() for _ in range(4)))
    one, two, three, four = await claim(store)
    await succeed(store, one)
    await give_back(store, two)
    await fail(store, three)
    leases = [(job.id, job.fence, lease_s) for job in (four, three, two, one)]
    assert await store.renew([*leases, (max(ids) + 1, 1, lease_s)]) == {four.id}


async def test_an_attempt_that_lost_its_lease_cannot_renew_it(store: Store, clock: Clock) -> None:
    late = await running_one(store)
    await lapse(store, clock)
    assert await store.renew([(late.id, late.fence, 1_000.0)]) == set()
    current = await claim_one(store)
    assert current.fence > late.fence
    assert await store.renew([(late.id, late.fence, 1_000.0)]) == set()
    assert (await lapse(store, clock)).made_ready == [current.id]


async def test_a_lease_that_ran_out_can_be_renewed_until_somebody_takes_the_job_back(
    store: Store, clock: Clock
) -> None:
    job = await running_one(store)
    await clock.advance(lease_s * 10)
    assert await store.renew([(job.id, job.fence, lease_s)]) == {job.id}
    assert (await store.sweep(10)).made_ready == []
    assert await succeed(store, job) == {job.id}


async def test_a_renewal_of_one_attempt_does_not_keep_the_next_one_alive(store: Store, clock: Clock) -> None:
    job = await running_one(store)
    await store.renew([(job.id, job.fence, 10_000.0)])
    await give_back(store, job)
    again = await claim_one(store)
    assert (await lapse(store, clock)).made_ready == [again.id]


async def test_an_unfinished_renewal_is_no_obstacle_to_the_end(store: Store, clock: Clock) -> None:
    ids = await send(store, *(message() for _ in range(30)))
    jobs = await claim(store)
    leases = [(job.id, job.fence, lease_s) for job in jobs]
    async with others(store, 3) as stores:
        await asyncio.gather(
            *(each.renew(leases[::-1]) for each in stores), *(succeed(store, *jobs[n::3]) for n in range(3))
        )
    assert {await state_of(store, job_id) for job_id in ids} == {State.succeeded}


async def test_many_leases_are_renewed_together(store: Store, clock: Clock) -> None:
    ids = await send(store, *(message() for _ in range(300)))
    jobs = await claim(store, most=300)
    assert await store.renew([(job.id, job.fence, 1_000.0) for job in reversed(jobs)]) == set(ids)
    assert await store.renew([(job.id, job.fence, 1_000.0) for job in jobs]) == set(ids)
    assert (await lapse(store, clock, 500)).made_ready == []


async def test_renewals_at_the_same_time_in_any_order_all_count(store: Store, clock: Clock) -> None:
    ids = await send(store, *(message() for _ in range(50)))
    leases = [(job.id, job.fence, 1_000.0) for job in await claim(store)]
    async with others(store, 4) as stores:
        for _ in range(5):
            answers = await asyncio.gather(*(each.renew(leases[:: 1 - 2 * (n % 2)]) for n, each in enumerate(stores)))
            assert answers == [set(ids)] * 4
