"""claim: ready jobs, best first, each to one supervisor under a new fence, never more than the limits allow."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from agentrt.model import State
from agentrt.store import Store
from tests.conftest import Clock
from tests.store.verbs import (
    claim,
    claim_one,
    elsewhere,
    fail,
    give_back,
    here,
    in_line,
    lapse,
    lease_s,
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
    wanted,
)


async def test_a_smaller_priority_number_goes_first_and_equals_in_the_order_they_were_sent(store: Store) -> None:
    ids = await send(store, *(message(priority=p) for p in (5, 0, 9, 5, 0, 9, 5)))
    expected = [ids[n] for n in (1, 4, 0, 3, 6, 2, 5)]
    assert [job.id for job in await claim(store, most=3)] == expected[:3]
    assert await in_line(store) == expected[3:]


async def test_what_was_sent_first_is_claimed_first_over_several_sends(store: Store) -> None:
    ids = [await send_one(store) for _ in range(5)]
    assert await in_line(store) == ids


async def test_a_claim_leases_the_job_to_its_supervisor(store: Store, clock: Clock) -> None:
    job_id = await send_one(store)
    job = await claim_one(store, like=policy(lease=17.0))
    row = await row_of(store, job_id)
    assert (row["state"], row["owner_id"], row["fence"]) == (State.running, here, job.fence)
    assert (row["lease_expires"] - row["claimed_at"]).total_seconds() == pytest.approx(17.0)
    assert job.lease_s == 17.0


async def test_every_claim_of_a_job_raises_its_fence(store: Store) -> None:
    await send_one(store)
    fences = []
    for _ in range(4):
        job = await claim_one(store)
        fences.append(job.fence)
        await give_back(store, job, counts=False)
    assert fences == sorted(set(fences))


async def test_a_claim_counts_an_attempt(store: Store) -> None:
    await send_one(store)
    attempts = []
    for _ in range(3):
        job = await claim_one(store)
        attempts.append(job.attempt)
        await give_back(store, job)
    assert attempts == [1, 2, 3]


async def test_a_job_is_handed_out_once(store: Store) -> None:
    await running_one(store)
    assert await claim(store, supervisor=elsewhere) == []
    assert await claim(store) == []


async def test_claims_at_the_same_time_never_share_a_job_and_leave_none(store: Store) -> None:
    ids = await send(store, *(message() for _ in range(400)))
    async with others(store, 8) as stores:

        async def take(each: Store) -> list[int]:
            taken: list[int] = []
            while jobs := await claim(each, most=7):
                taken += [job.id for job in jobs]
            return taken

        taken = [job_id for share in await asyncio.gather(*map(take, stores)) for job_id in share]
    assert len(taken) == len(set(taken))
    assert set(taken) | {job.id for job in await claim(store)} == set(ids)


async def test_a_claim_never_takes_more_than_its_total(store: Store) -> None:
    await send(store, *(message(agent) for agent in "aabbcc"))
    jobs = await store.claim(wanted(here, [(policy(agent), 2) for agent in "abc"], 4))
    assert len(jobs) == 4


async def test_a_claim_never_takes_more_of_an_agent_than_it_may(store: Store) -> None:
    await send(store, *(message(agent) for agent in "aaaabbbbcccc"))
    jobs = await store.claim(wanted(here, [(policy("a"), 3), (policy("b"), 1), (policy("c"), 0)], 100))
    assert Counter(job.agent for job in jobs) == {"a": 3, "b": 1}


async def test_the_agent_that_is_asked_for_first_is_served_first(store: Store) -> None:
    await send(store, *(message(agent) for agent in "aabb"))
    first = await store.claim(wanted(here, [(policy("b"), 5), (policy("a"), 5)], 3))
    assert Counter(job.agent for job in first) == {"b": 2, "a": 1}


async def test_an_agent_that_nobody_asks_for_is_left_alone(store: Store) -> None:
    unknown = await send_one(store, "unknown")
    await running_one(store)
    row = await row_of(store, unknown)
    assert (row["state"], row["attempt_count"], row["fence"]) == (State.ready, 0, 0)


async def test_a_limit_over_all_processes_counts_what_others_run(store: Store) -> None:
    limited = policy(limit=3)
    await send(store, *(message() for _ in range(6)))
    first = await claim(store, like=limited, most=2)
    second = await claim(store, like=limited, supervisor=elsewhere)
    assert (len(first), len(second)) == (2, 1)
    assert await claim(store, like=limited) == []
    await succeed(store, first[0])
    await give_back(store, second[0])
    await fail(store, first[1])
    assert len(await claim(store, like=limited)) == 3
    assert all(job.limited for job in [*first, *second])


async def test_a_limit_over_all_processes_holds_when_all_claim_at_the_same_time(store: Store) -> None:
    limited = [policy("a", limit=3), policy("b", limit=1)]
    await send(store, *(message(agent) for agent in "ab" * 30))
    async with others(store, 8) as stores:
        for _ in range(5):
            both = [(each, 10) for each in limited]
            shares = await asyncio.gather(
                *(each.claim(wanted(elsewhere, both if n % 2 else both[::-1], 10)) for n, each in enumerate(stores))
            )
            jobs = [job for share in shares for job in share]
            assert Counter(job.agent for job in jobs) == {"a": 3, "b": 1}
            await succeed(store, *jobs)


async def test_an_agent_at_its_limit_holds_up_no_other(store: Store) -> None:
    await send(store, *(message(agent) for agent in "aaabb"))
    jobs = await store.claim(wanted(here, [(policy("a", limit=1), 10), (policy("b"), 10)], 10))
    assert Counter(job.agent for job in jobs) == {"a": 1, "b": 2}


async def test_the_message_decides_its_attempts_and_else_the_agent(store: Store) -> None:
    own, agents = await send(store, message(max_attempts=2), message())
    jobs = {job.id: job.max_attempts for job in await claim(store, like=policy(max_attempts=9))}
    assert jobs == {own: 2, agents: 9}
    assert (await row_of(store, agents))["max_attempts"] == 9


async def test_each_agent_has_its_own_lease_and_attempts(store: Store) -> None:
    await send(store, message("a"), message("b"))
    both = [(policy("b", lease=5.0, max_attempts=2), 1), (policy("a", lease=50.0, max_attempts=20), 1)]
    jobs = {job.agent: (job.lease_s, job.max_attempts) for job in await store.claim(wanted(here, both, 2))}
    assert jobs == {"a": (50.0, 20), "b": (5.0, 2)}


async def test_only_ready_jobs_are_claimed(store: Store, clock: Clock) -> None:
    head, behind, delayed = await send(store, message(key="k"), message(key="k"), message(delay_s=60.0))
    assert [job.id for job in await claim(store)] == [head]
    assert await states_of(store, [head, behind, delayed]) == [State.running, State.blocked, State.scheduled]


async def test_a_job_that_becomes_ready_again_goes_behind_those_that_wait(store: Store) -> None:
    first, second, third = await send(store, message(), message(), message())
    (job,) = await claim(store, most=1)
    await give_back(store, job)
    assert await in_line(store) == [second, third, first]


async def test_a_claim_says_how_long_the_job_was_due(store: Store, clock: Clock) -> None:
    await send(store, message(), message(delay_s=60.0))
    await clock.advance(100)
    await store.due(10)
    assert [round(job.waited_s / 10) for job in await claim(store)] == [10, 4]


async def test_a_repeated_claim_brings_the_recorded_steps_along(store: Store) -> None:
    await send(store, message(), message())
    first, second = await claim(store)
    assert first.steps == {}
    await record(store, first, "search#0", '{"hits":[1]}')
    await record(store, first, "search#1", "null")
    await give_back(store, first, second)
    steps = {job.id: outputs(job) for job in await claim(store)}
    assert steps == {first.id: {"search#0": '{"hits":[1]}', "search#1": "null"}, second.id: {}}


async def test_a_lease_counts_on_the_clock_of_the_store(store: Store, clock: Clock) -> None:
    job_id = await send_one(store)
    await clock.advance(-3_600)
    await claim_one(store)
    await clock.advance(lease_s - 1)
    await store.sweep(10)
    assert await state_of(store, job_id) == State.running


async def test_of_the_jobs_that_may_have_killed_their_process_a_claim_takes_one(store: Store, clock: Clock) -> None:
    ids = await send(store, message(), message(), message(priority=0))
    await claim(store, like=policy(max_attempts=9))
    for _ in range(2):
        await lapse(store, clock)
        jobs = await claim(store, like=policy(max_attempts=9))
    assert [(job.id, job.alone) for job in jobs] == [(ids[2], True)]
    assert await store.claim(wanted(elsewhere, [(policy(), 10)], 10, alone=False)) == []
    healthy = await send_one(store)
    assert [job.id for job in await store.claim(wanted(elsewhere, [(policy(), 10)], 10, alone=False))] == [healthy]
    others_too = await send_one(store)
    assert {job.id: job.alone for job in await claim(store, most=2)} == {ids[0]: True, others_too: False}


async def test_a_job_before_its_last_attempt_is_claimed_alone(store: Store, clock: Clock) -> None:
    await send(store, message(max_attempts=2), message(max_attempts=2), message(max_attempts=9))
    assert len(await claim(store)) == 3
    await lapse(store, clock)
    assert sorted(job.alone for job in await claim(store)) == [False, True]


async def test_a_job_that_was_given_back_is_no_longer_suspected(store: Store, clock: Clock) -> None:
    await send(store, message(max_attempts=2), message(max_attempts=2))
    await claim(store)
    await lapse(store, clock)
    (suspect,) = await claim(store)
    await give_back(store, suspect, counts=False)
    assert [job.alone for job in await claim(store)].count(False) == 1


async def test_a_suspected_job_counts_in_the_limits(store: Store, clock: Clock) -> None:
    ids = await send(store, message(max_attempts=2), message(max_attempts=9))
    await claim(store)
    await lapse(store, clock)
    await send(store, message(), message("b"))
    assert [job.id for job in await store.claim(wanted(here, [(policy(limit=1), 10)], 10))] == [ids[0]]
    assert await store.claim(wanted(here, [(policy(limit=1), 10)], 10)) == []
    assert len(await store.claim(wanted(here, [(policy("b"), 10), (policy(), 10)], 1))) == 1
