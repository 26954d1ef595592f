"""turn: jobs end and others are claimed in one statement, each half as if it were alone. Floors: where a claim begins to look."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

from agentrt.model import Claimed, State
from agentrt.store import Store
from agentrt.store.postgres import PostgresStore
from tests.conftest import Clock
from tests.store.verbs import (
    claim,
    claim_one,
    elsewhere,
    here,
    in_line,
    lapse,
    listening,
    message,
    others,
    policy,
    running_one,
    send,
    send_one,
    state_of,
    states_of,
    succeed,
    turn,
    wanted,
)

none = (0,) * 10


def floor(priority: int, ord_: int) -> tuple[int, ...]:
    return tuple(ord_ if p == priority else 0 for p in range(10))


async def begins(store: Store, priority: int = 5, agent: str = "a") -> int:
    """Where the ready jobs of this priority begin."""
    least = (await store.floors([agent]))[priority]
    assert least is not None
    return least


async def claim_above(store: Store, *floors: int, agents: str = "a", most: int = 100) -> list[int]:
    asked = wanted(here, [(policy(agent), most) for agent in agents], most, floors=floors)
    return [job.id for job in await store.claim(asked)]


async def test_a_turn_ends_jobs_and_claims_the_next_in_one_statement(store: PostgresStore) -> None:
    ids = await send(store, *(message() for _ in range(5)))
    first = await claim(store, most=2)
    before = store.statements
    accepted, jobs = await turn(store, *first, most=2)
    assert store.statements - before == 1
    assert accepted == set(ids[:2])
    assert [job.id for job in jobs] == ids[2:4]
    assert await states_of(store, ids) == [State.succeeded] * 2 + [State.running] * 2 + [State.ready]
    assert await succeed(store, *jobs) == set(ids[2:4])


async def test_a_turn_that_finds_nothing_to_claim_ends_its_jobs(store: Store) -> None:
    job = await running_one(store)
    assert await turn(store, job) == ({job.id}, [])
    assert await state_of(store, job.id) == State.succeeded


async def test_the_end_of_an_attempt_that_lost_its_lease_is_refused_and_what_comes_with_it_is_not(
    store: Store, clock: Clock
) -> None:
    late = await running_one(store)
    assert (await lapse(store, clock)).made_ready == [late.id]
    current = await claim_one(store, supervisor=elsewhere)
    good, waiting = await send(store, message(), message())
    (owned,) = await claim(store, most=1)
    accepted, jobs = await turn(store, late, owned)
    assert accepted == {good}
    assert [job.id for job in jobs] == [waiting]
    assert await state_of(store, late.id) == State.running
    assert await turn(store, current) == ({late.id}, [])
    assert await turn(store, current) == (set(), [])


async def test_the_limit_over_all_processes_counts_what_the_same_statement_ends(store: Store) -> None:
    limited = policy(limit=2)
    ids = await send(store, *(message() for _ in range(5)))
    first = await claim(store, like=limited)
    accepted, jobs = await turn(store, first[0], like=limited)
    assert (accepted, [job.id for job in jobs]) == ({ids[0]}, [ids[2]])
    assert jobs[0].limited


async def test_the_next_of_a_mailbox_is_claimed_by_the_statement_that_ends_the_one_before(store: Store) -> None:
    ids = await send(store, *(message(key="k") for _ in range(4)))
    job = await claim_one(store)
    for n, job_id in enumerate(ids[1:]):
        accepted, jobs = await turn(store, job, key_state=f'{{"seen":{n}}}')
        assert accepted == {job.id}
        (job,) = jobs
        assert (job.id, job.key_state) == (job_id, f'{{"seen":{n}}}')
    assert await turn(store, job) == ({ids[-1]}, [])


async def test_the_next_of_a_mailbox_waits_behind_what_was_ready_before(store: Store) -> None:
    await send(store, message(key="k"), message(key="k"))
    job = await claim_one(store)
    plain = await send_one(store)
    _, (next_job,) = await turn(store, job, most=1)
    assert next_job.id == plain


async def test_mailboxes_keep_their_order_when_many_take_turns(store: Store) -> None:
    sent: dict[str | None, list[int]] = {f"k{n}": [] for n in range(6)}
    for _ in range(12):
        for key, ids in sent.items():
            ids.append(await send_one(store, key=key))
    claimed: dict[str | None, list[int]] = defaultdict(list)

    async def work(each: Store) -> None:
        jobs: list[Claimed] = []
        while sum(map(len, claimed.values())) < 72:
            _, jobs = await turn(each, *jobs, most=3)
            for job in jobs:
                claimed[job.key].append(job.id)
        assert await succeed(each, *jobs) == {job.id for job in jobs}

    async with others(store, 4) as stores, asyncio.timeout(60):
        await asyncio.gather(*map(work, stores))
    assert claimed == sent
    assert {await state_of(store, job_id) for ids in sent.values() for job_id in ids} == {State.succeeded}


async def test_a_next_of_a_mailbox_that_is_not_claimed_is_rung_for(store: Store) -> None:
    _, behind = await send(store, message(key="k"), message(key="k"))
    job = await claim_one(store)
    async with listening(store) as ears:
        assert await turn(store, job, agent="b") == ({job.id}, [])
        assert await ears.now(store) == ["ready"]
    assert (await claim_one(store)).id == behind


async def test_of_several_nexts_the_one_that_is_left_is_rung_for(store: Store) -> None:
    await send(store, *(message(key=key) for key in "kkll"))
    jobs = await claim(store)
    async with listening(store) as ears:
        _, claimed = await turn(store, *jobs, most=1)
        assert len(claimed) == 1
        assert await ears.now(store) == ["ready"]


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_turn_that_leaves_nothing_new_rings_nobody(store: Store, key: str | None) -> None:
    ids = await send(store, message(key=key), message(key=key))
    (job,) = await claim(store, most=1)
    async with listening(store) as ears:
        _, (next_job,) = await turn(store, job)
        assert next_job.id == ids[1]
        assert await ears.now(store) == []


async def test_what_is_sent_after_a_turn_on_the_same_connection_is_rung_for(store: Store) -> None:
    """The bell is held for as long as the turn lasts."""
    await send(store, message(key="k"), message(key="k"))
    job = await claim_one(store)
    await turn(store, job)
    async with listening(store) as ears:
        await send_one(store)
        assert await ears.now(store) == ["ready"]


async def test_a_claim_does_not_look_below_its_floor(store: Store) -> None:
    below = await send_one(store)
    first = await begins(store)
    ids = await send(store, message(), message())
    assert await claim_above(store, *floor(5, first + 1)) == ids
    assert await claim_above(store, *floor(5, first)) == [below]


async def test_each_priority_has_a_floor_of_its_own(store: Store) -> None:
    ids = {p: await send_one(store, priority=p) for p in (9, 0, 5)}
    ord_ = await begins(store, 5)
    assert await claim_above(store, *floor(5, ord_ + 1)) == [ids[0], ids[9]]
    assert await claim_above(store, *none) == [ids[5]]


async def test_each_agent_has_floors_of_its_own_in_the_order_in_which_they_are_asked_for(store: Store) -> None:
    a, b = await send(store, message("a"), message("b"))
    above = await begins(store, agent="b") + 1
    assert await claim_above(store, *none, *floor(5, above), agents="ab") == [a]
    assert await claim_above(store, *floor(5, above), *none, agents="ab") == [b]


async def test_a_claim_with_floors_takes_the_best_first_and_no_more_than_it_may(store: Store) -> None:
    ids = await send(store, *(message(priority=p) for p in (5, 0, 9, 5, 0, 9, 5)))
    expected = [ids[n] for n in (1, 4, 0, 3, 6, 2, 5)]
    assert await claim_above(store, *none, most=3) == expected[:3]
    assert await claim_above(store, *none, most=3) == expected[3:6]
    assert await in_line(store) == expected[6:]


async def test_a_turn_claims_above_its_floors(store: Store) -> None:
    job = await running_one(store)
    below = await send_one(store)
    above = await begins(store) + 1
    ids = await send(store, message(), message())
    _, jobs = await store.turn([], wanted(here, [(policy("a"), 9)], 9, floors=floor(5, above)), keyed=(), limited=False)
    assert [each.id for each in jobs] == ids
    _, jobs = await turn(store, job)
    assert [each.id for each in jobs] == [below]


async def test_floors_tell_where_the_ready_jobs_of_each_priority_begin(store: Store) -> None:
    assert await store.floors(["a", "b"]) == [None] * 20
    await send(store, message(delay_s=60), *(message(priority=p) for p in (2, 2, 7)), message("b", priority=2))
    jobs = await claim(store, "b") + await claim(store)
    ords = {(job.agent, job.priority): job.ord for job in reversed(jobs)}
    assert await store.floors(["a", "b"]) == [None] * 20  # they run, or are not due
    await send(store, *(message(priority=p) for p in (2, 2, 7)), message("b", priority=2, key="k"))
    await send_one(store, "b", "k", priority=1)
    found = await store.floors(["b", "a", "c"])
    assert [n for n, least in enumerate(found) if least is not None] == [2, 12, 17]
    now = {(job.agent, job.priority): job.ord for job in reversed(await claim(store) + await claim(store, "b"))}
    assert (found[2], found[12], found[17]) == (now["b", 2], now["a", 2], now["a", 7])
    assert all(now[place] > ords[place] for place in ords)
