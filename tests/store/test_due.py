"""due: what waits for its moment becomes ready when that has come, oldest first."""

from __future__ import annotations

import asyncio

import pytest

from agentrt.model import State
from agentrt.store import Store
from tests.conftest import Clock
from tests.store.verbs import claim, in_line, message, others, send, send_one, state_of, states_of


async def test_a_job_is_ready_when_its_moment_has_come_and_not_before(store: Store, clock: Clock) -> None:
    job_id = await send_one(store, delay_s=10.0)
    await clock.advance(5)
    assert (await store.due(10))[0] == 0
    assert await state_of(store, job_id) == State.scheduled
    await clock.advance(6)
    assert await store.due(10) == (1, None)
    assert await state_of(store, job_id) == State.ready
    assert [job.id for job in await claim(store)] == [job_id]


async def test_it_tells_when_the_next_is_due(store: Store, clock: Clock) -> None:
    assert await store.due(10) == (0, None)
    await send(store, message(delay_s=1_000.0), message(delay_s=100.0), message())
    moved, next_s = await store.due(10)
    assert moved == 0
    assert next_s == pytest.approx(100.0, abs=5)
    await clock.advance(200)
    moved, next_s = await store.due(10)
    assert moved == 1
    assert next_s == pytest.approx(800.0, abs=5)


async def test_what_is_over_due_has_no_time_left(store: Store, clock: Clock) -> None:
    await send(store, *(message(delay_s=10.0) for _ in range(3)))
    await clock.advance(60)
    moved, next_s = await store.due(2)
    assert moved == 2
    assert next_s is not None
    assert next_s < 0


async def test_those_that_became_due_first_are_claimed_first(store: Store, clock: Clock) -> None:
    third, first, second, fourth = await send(store, *(message(delay_s=float(s)) for s in (30, 10, 20, 30)))
    await clock.advance(60)
    for _ in range(2):
        assert (await store.due(2))[0] == 2
    assert await in_line(store) == [first, second, third, fourth]


async def test_passes_at_the_same_time_move_each_job_once(store: Store, clock: Clock) -> None:
    ids = await send(store, *(message(delay_s=10.0) for _ in range(100)))
    await clock.advance(60)
    async with others(store, 6) as stores:
        moved = sum(count for count, _ in await asyncio.gather(*(each.due(30) for each in stores)))
    moved += (await store.due(100))[0]
    assert moved == 100
    assert sorted(job.id for job in await claim(store)) == ids


async def test_the_pass_leaves_other_jobs_alone(store: Store, clock: Clock) -> None:
    ids = await send(store, message(key="k", delay_s=10.0), message(key="k", delay_s=5.0), message())
    await claim(store)
    await clock.advance(6)
    assert (await store.due(10))[0] == 0
    assert await states_of(store, ids) == [State.scheduled, State.blocked, State.running]
