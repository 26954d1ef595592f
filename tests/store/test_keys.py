"""Mailboxes: the jobs of a key run one at a time, in the order they were committed, whatever ends the one before."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable

import pytest

from agentrt.model import Claimed, State
from agentrt.store import Store
from tests.conftest import Clock
from tests.store.verbs import (
    claim,
    claim_one,
    elsewhere,
    fail,
    give_back,
    in_line,
    lapse,
    message,
    oops,
    others,
    send,
    send_one,
    state_of,
    states_of,
    succeed,
)


async def mailbox(store: Store, count: int) -> list[int]:
    return await send(store, *(message(key="k") for _ in range(count)))


async def by_cancel(store: Store, job: Claimed, clock: Clock) -> None:
    await store.cancel(job.id, "no longer needed")
    await give_back(store, job)


async def by_sweep(store: Store, job: Claimed, clock: Clock) -> None:
    assert (await lapse(store, clock)).ended == [job.id]


async def by_finish(store: Store, job: Claimed, clock: Clock) -> None:
    await succeed(store, job)


async def by_fail(store: Store, job: Claimed, clock: Clock) -> None:
    await fail(store, job)


async def test_a_mailbox_has_one_job_that_can_be_claimed(store: Store) -> None:
    ids = await mailbox(store, 4)
    assert await states_of(store, ids) == [State.ready, *[State.blocked] * 3]
    await claim_one(store)
    assert await states_of(store, ids) == [State.running, *[State.blocked] * 3]
    assert await claim(store, supervisor=elsewhere) == []


@pytest.mark.parametrize("end_it", [by_finish, by_fail, by_cancel, by_sweep])
async def test_the_end_of_a_job_however_it_comes_frees_the_next_and_only_that(
    store: Store, clock: Clock, end_it: Callable[[Store, Claimed, Clock], Awaitable[None]]
) -> None:
    ids = await send(store, *(message(key="k", max_attempts=1) for _ in range(3)))
    for done in (1, 2, 3):
        job = await claim_one(store)
        assert job.id == ids[done - 1]
        await end_it(store, job, clock)
        assert (await states_of(store, ids))[done:] == [State.ready, State.blocked][: 3 - done]


async def test_a_job_goes_in_the_order_it_was_sent_whatever_its_priority(store: Store) -> None:
    ids = await send(store, *(message(key="k", priority=priority) for priority in (9, 5, 0)))
    assert await in_line(store) == ids


async def test_mailboxes_do_not_wait_for_each_other(store: Store) -> None:
    ids = await send(store, message(key="k"), message(key="l"), message("b", "k"), message(), message())
    assert await states_of(store, ids) == [State.ready] * 5
    assert len(await claim(store)) == 4
    assert len(await claim(store, "b")) == 1


async def test_names_that_look_alike_are_different_mailboxes(store: Store) -> None:
    pairs = [("ab", "c"), ("a", "bc"), ("A", "bc"), ("a", "bc "), ("a", "BC"), ("a", "Straße"), ("a", "Strasse")]
    ids = await send(store, *(message(agent, key) for agent, key in pairs))
    assert await states_of(store, ids) == [State.ready] * len(pairs)


async def test_a_job_that_is_due_later_holds_its_mailbox(store: Store, clock: Clock) -> None:
    head, behind = await send(store, message(key="k", delay_s=60.0), message(key="k"))
    assert await states_of(store, [head, behind]) == [State.scheduled, State.blocked]
    await clock.advance(61)
    await store.due(10)
    assert await in_line(store) == [head, behind]


async def test_a_job_whose_moment_is_to_come_waits_for_it_when_its_turn_is_there(store: Store, clock: Clock) -> None:
    _, behind = await send(store, message(key="k"), message(key="k", delay_s=60.0))
    await succeed(store, await claim_one(store))
    assert await state_of(store, behind) == State.scheduled
    assert await claim(store) == []
    await clock.advance(61)
    await store.due(10)
    assert await in_line(store) == [behind]


async def test_a_job_whose_moment_passed_while_it_was_blocked_is_ready_when_its_turn_is_there(
    store: Store, clock: Clock
) -> None:
    _, behind = await send(store, message(key="k"), message(key="k", delay_s=60.0))
    job = await claim_one(store)
    await clock.advance(61)
    assert (await store.due(10))[0] == 0
    await succeed(store, job)
    assert (await claim_one(store)).id == behind


async def test_a_message_after_the_last_end_is_ready(store: Store) -> None:
    await mailbox(store, 1)
    await succeed(store, await claim_one(store))
    assert await state_of(store, await send_one(store, key="k")) == State.ready


@pytest.mark.parametrize("delay_s", [0.0, 60.0])
async def test_a_job_that_waits_for_its_retry_keeps_its_place(store: Store, clock: Clock, delay_s: float) -> None:
    ids = await mailbox(store, 3)
    await give_back(store, await claim_one(store), delay_s=delay_s, failure=oops)
    assert await state_of(store, ids[0]) == (State.scheduled if delay_s else State.ready)
    assert await states_of(store, ids[1:]) == [State.blocked] * 2
    await clock.advance(delay_s + 1)
    await store.due(10)
    assert await in_line(store) == ids


async def test_a_job_taken_back_from_a_dead_process_keeps_its_place(store: Store, clock: Clock) -> None:
    ids = await mailbox(store, 3)
    await claim_one(store)
    await lapse(store, clock)
    assert await states_of(store, ids) == [State.ready, State.blocked, State.blocked]
    assert await in_line(store) == ids


async def test_in_loose_order_ready_jobs_pass_one_that_waits_still_one_at_a_time(store: Store, clock: Clock) -> None:
    first, second, third = await mailbox(store, 3)
    await give_back(store, await claim_one(store), delay_s=60.0, failure=oops, loose=True)
    job = await claim_one(store)
    assert job.id == second
    assert await claim(store) == []
    await succeed(store, job)
    job = await claim_one(store)
    assert job.id == third
    await clock.advance(61)
    await store.due(10)
    assert await claim(store) == []
    await succeed(store, job)
    await store.due(10)
    assert await in_line(store) == [first]


async def test_in_loose_order_a_lonely_job_waits_for_its_own_moment(store: Store, clock: Clock) -> None:
    (job_id,) = await mailbox(store, 1)
    await give_back(store, await claim_one(store), delay_s=60.0, loose=True)
    assert await state_of(store, job_id) == State.scheduled
    behind = await send_one(store, key="k")
    await clock.advance(61)
    await store.due(10)
    assert sorted(await in_line(store)) == [job_id, behind]


async def test_in_loose_order_jobs_that_all_wait_come_back_each_at_its_moment(store: Store, clock: Clock) -> None:
    ids = await mailbox(store, 3)
    for delay_s in (60.0, 50.0, 40.0):
        await give_back(store, await claim_one(store), delay_s=delay_s, loose=True)
    done: list[int] = []
    for _ in range(6):
        await clock.advance(61)
        await store.due(10)
        done += await in_line(store)
    assert sorted(done) == ids


async def test_in_loose_order_too_an_attempt_that_lost_its_lease_changes_nothing(store: Store, clock: Clock) -> None:
    await mailbox(store, 1)
    late = await claim_one(store)
    await lapse(store, clock)
    await give_back(store, await claim_one(store), delay_s=60.0, loose=True)
    behind = await send_one(store, key="k")
    assert await give_back(store, late, delay_s=60.0, loose=True) == set()
    assert await states_of(store, [late.id, behind]) == [State.scheduled, State.blocked]


async def test_in_loose_order_a_job_given_back_at_once_keeps_its_place(store: Store) -> None:
    ids = await mailbox(store, 3)
    await give_back(store, await claim_one(store), loose=True)
    assert await in_line(store) == ids


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_job_that_leaves_its_mailbox_leaves_the_others_in_order(store: Store, place: int) -> None:
    ids = await mailbox(store, 4)
    assert await store.cancel(ids[place], "no longer needed") == "cancelled"
    del ids[place]
    assert await states_of(store, ids) == [State.ready, State.blocked, State.blocked]
    assert await in_line(store) == ids


async def test_a_job_that_waits_for_its_moment_frees_its_mailbox_when_it_is_cancelled(store: Store) -> None:
    head, behind = await send(store, message(key="k", delay_s=60.0), message(key="k"))
    await store.cancel(head, "no longer needed")
    assert await state_of(store, behind) == State.ready


async def test_a_batch_may_end_jobs_of_many_mailboxes(store: Store) -> None:
    firsts = await send(store, *(message(key=f"k{n}") for n in range(40)))
    seconds = await send(store, *(message(key=f"k{n}") for n in range(40)))
    jobs = await claim(store)
    assert [job.id for job in jobs] == firsts
    await succeed(store, *jobs[:20])
    await give_back(store, *jobs[20:])
    assert sorted(job.id for job in await claim(store)) == [*firsts[20:], *seconds[:20]]


async def test_overlapping_mailboxes_in_opposite_order_do_not_hold_each_other_up(store: Store) -> None:
    keys = [f"k{n}" for n in range(60)]
    async with others(store, 4) as stores:

        async def produce(each: Store, order: list[str]) -> list[int]:
            ids = []
            for start in (0, 20, 10):
                ids += await send(each, *(message(key=key) for key in order[start : start + 40]))
            return ids

        produced = await asyncio.gather(*(produce(each, keys[:: 1 - 2 * (n % 2)]) for n, each in enumerate(stores)))
    done: list[int] = []
    while jobs := await claim(store):
        assert max(Counter(job.key for job in jobs).values()) == 1
        done += [job.id for job in jobs]
        await succeed(store, *jobs)
    assert sorted(done) == sorted(job_id for ids in produced for job_id in ids)


async def test_what_one_sender_sends_to_a_mailbox_stays_in_its_order_among_others(store: Store) -> None:
    async with others(store, 4) as stores:

        async def produce(each: Store) -> list[int]:
            return [await send_one(each, key="k") for _ in range(15)]

        produced = await asyncio.gather(*map(produce, stores))
    order = await in_line(store)
    assert len(order) == 60
    for ids in produced:
        assert [job_id for job_id in order if job_id in set(ids)] == ids


class Story:
    """What happened to the jobs, as their workers saw it."""

    def __init__(self) -> None:
        self.running: Counter[str | None] = Counter()
        self.done: defaultdict[str | None, list[int]] = defaultdict(list)
        self.fences: defaultdict[int, list[int]] = defaultdict(list)

    def begin(self, job: Claimed) -> None:
        self.running[job.key] += 1
        self.fences[job.id].append(job.fence)
        assert self.running[job.key] == 1, f"two jobs of {job.key} run at the same time"


async def work(store: Store, story: Story, count: int) -> None:
    """Claim, and finish or give back what was claimed, until all is done."""
    dice = random.Random(count)
    while sum(map(len, story.done.values())) < count:
        jobs = await claim(store, most=5)
        for job in jobs:
            story.begin(job)
        for job in jobs:
            story.running[job.key] -= 1  # before the end: the next of the key may be run elsewhere right after it
            if dice.random() < 0.2:
                assert await give_back(store, job, counts=False) == {job.id}
            else:
                story.done[job.key].append(job.id)
                assert await succeed(store, job) == {job.id}


async def test_over_many_workers_each_mailbox_runs_alone_and_in_order_and_nothing_is_lost(store: Store) -> None:
    story = Story()
    sent: defaultdict[str | None, list[int]] = defaultdict(list)

    async def produce(each: Store, keys: list[str]) -> None:
        for key in keys * 20:
            sent[key].append(await send_one(each, key=key))

    async with others(store, 6) as stores:
        producers = [produce(stores[0], ["a", "b", "c", "d"]), produce(stores[1], ["hot", "hot", "hot", "e"])]
        await asyncio.gather(*producers, *(work(each, story, 160) for each in stores[2:]))
    assert story.done == sent
    assert all(fences == sorted(set(fences)) for fences in story.fences.values())
    rows = await store.jobs(state=None, agent=None, key=None, limit=1_000)
    assert Counter(row["state"] for row in rows) == {State.succeeded: 160}
    assert len({row["id"] for row in rows}) == 160
