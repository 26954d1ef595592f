"""turn: jobs end and the next are claimed in one statement, and what it does not claim itself is rung for."""

from __future__ import annotations

from dataclasses import replace

from agentrt.model import Claimed, Finish, State
from agentrt.store import Store
from tests.conftest import Clock
from tests.store.verbs import (
    claim,
    claim_one,
    elsewhere,
    here,
    lapse,
    listening,
    message,
    policy,
    send,
    send_one,
    state_of,
    wanted,
)


async def turn(store: Store, *jobs: Claimed, most: int = 100, keyed: bool = True) -> tuple[set[int], list[Claimed]]:
    ends = [Finish(job.id, job.fence, State.succeeded, "1") for job in jobs]
    return await store.turn(ends, wanted(here, [(policy(), most)], most), keyed=["a"] if keyed else [], limited=False)


async def test_the_ends_are_stored_and_as_many_as_asked_for_are_claimed(store: Store) -> None:
    ids = await send(store, *(message() for _ in range(5)))
    first = await claim(store, most=2)
    accepted, jobs = await turn(store, *first, most=2)
    assert accepted == set(ids[:2])
    assert [job.id for job in jobs] == ids[2:4]
    assert [await state_of(store, job_id) for job_id in ids] == [State.succeeded] * 2 + [State.running] * 2 + [
        State.ready
    ]


async def test_an_end_whose_job_has_moved_on_is_refused_and_the_claim_counts(store: Store, clock: Clock) -> None:
    first = await send_one(store)
    late = await claim_one(store)
    await lapse(store, clock)
    again = await claim_one(store, supervisor=elsewhere)
    second = await send_one(store)
    accepted, jobs = await turn(store, late)
    assert accepted == set()
    assert [job.id for job in jobs] == [second]
    assert (again.id, again.fence) == (first, late.fence + 1)
    assert await state_of(store, first) == State.running


async def test_the_next_of_a_mailbox_is_claimed_in_the_same_statement_in_order(store: Store) -> None:
    ids = await send(store, *(message(key="k") for _ in range(4)))
    job = await claim_one(store)
    order = [job.id]
    for _ in range(3):
        accepted, (following,) = await turn(store, job)
        assert accepted == {job.id}
        job = following
        order.append(job.id)
    assert order == ids


async def test_who_takes_the_next_of_a_mailbox_itself_rings_nobody(store: Store) -> None:
    await send(store, message(key="k"), message(key="k"))
    job = await claim_one(store)
    async with listening(store) as ears:
        await turn(store, job)
        assert await ears.now(store) == []


async def test_the_next_of_a_mailbox_that_is_not_taken_is_rung_for(store: Store) -> None:
    await send(store, message(key="k"), message(key="k"), message(priority=1))
    jobs = await claim(store)
    async with listening(store) as ears:
        await turn(store, *(job for job in jobs if job.key == "k"), most=0)
        assert await ears.now(store) == ["ready"]


async def test_jobs_below_a_floor_are_not_looked_at_and_those_of_other_priorities_are(store: Store) -> None:
    ids = await send(store, *(message(priority=n % 2 + 4) for n in range(6)))
    ask = wanted(here, [(policy(), 10)], 10)
    begin = await store.floors(["a"])
    assert [place for place, least in enumerate(begin) if least is not None] == [4, 5]
    floors = [0] * 10
    floors[5] = (begin[5] or 0) + 1  # the first of priority 5 lies below it
    jobs = await store.claim(replace(ask, floors=tuple(floors)))
    assert [job.id for job in jobs] == [ids[0], ids[2], ids[4], ids[3], ids[5]]
    assert [least for least in await store.floors(["a"]) if least is not None] == [begin[5]]
    assert [job.id for job in await store.claim(replace(ask, floors=tuple([0] * 10)))] == [ids[1]]


async def test_floors_are_those_of_each_agent(store: Store) -> None:
    await send(store, message("a", priority=3), message("b", priority=7))
    begin = await store.floors(["b", "a", "none"])
    assert [place for place, least in enumerate(begin) if least is not None] == [7, 13]
