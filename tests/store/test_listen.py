"""listen: each change that somebody may wait for is hinted at, after it can be seen, and without data."""

from __future__ import annotations

import asyncio

import pytest

from agentrt.store import Store
from tests.conftest import Clock
from tests.store.verbs import (
    beat,
    claim,
    claim_one,
    elsewhere,
    give_back,
    here,
    lapse,
    listening,
    message,
    send,
    send_one,
    succeed,
)


@pytest.mark.parametrize("key", [None, "k"])
async def test_what_is_sent_can_be_claimed_when_the_hint_is_heard(store: Store, key: str | None) -> None:
    async with listening(store) as ears:
        sending = asyncio.gather(*(send_one(store, key=key) for _ in range(3)))
        await ears.until("ready")
        assert await claim(store) != []
        await sending


async def test_a_batch_is_one_hint(store: Store) -> None:
    async with listening(store) as ears:
        await send(store, *(message(key=f"k{n}") for n in range(50)))
        assert await ears.now(store) == ["ready"]


async def test_a_batch_of_delayed_messages_is_one_hint_each(store: Store) -> None:
    async with listening(store) as ears:
        await send(store, *(message(delay_s=60.0) for n in range(50)))
        heard = await ears.now(store)
        assert heard.count("due") == 1
        assert len(heard) <= 2


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_new_moment_to_wait_for_is_hinted_at(store: Store, key: str | None) -> None:
    async with listening(store) as ears:
        await send_one(store, key=key, delay_s=60.0)
        await ears.until("due")
        await send_one(store, "b")
        job = await claim_one(store, "b")
        await give_back(store, job, delay_s=30.0)
        await ears.until("due")


async def test_a_job_that_became_ready_again_is_hinted_at(store: Store, clock: Clock) -> None:
    async with listening(store) as ears:
        await send_one(store)
        await ears.until("ready")
        await give_back(store, await claim_one(store))
        await ears.until("ready")
        await claim_one(store)
        await lapse(store, clock)
        await ears.until("ready")
        await give_back(store, await claim_one(store), delay_s=10.0)
        await clock.advance(11)
        await store.due(10)
        await ears.until("ready")


async def test_the_next_of_a_mailbox_is_hinted_at(store: Store) -> None:
    await send(store, message(key="k"), message(key="k"))
    job = await claim_one(store)
    async with listening(store) as ears:
        await succeed(store, job)
        await ears.until("ready")
        await claim_one(store)


async def test_the_next_of_a_mailbox_whose_moment_is_to_come_is_hinted_at_as_due(store: Store) -> None:
    await send(store, message(key="k"), message(key="k", delay_s=60.0))
    job = await claim_one(store)
    async with listening(store) as ears:
        await succeed(store, job)
        await ears.until("due")


async def test_a_beat_rings_the_bell_of_its_supervisor(store: Store) -> None:
    async with listening(store) as ears:
        for supervisor in (here, elsewhere):
            await beat(store, supervisor)
            assert await ears.until("bell") == [("bell", str(supervisor))]
    assert [row["id"] for row in await store.supervisors()] == [here, elsewhere]
    await store.leave(here)
    assert [row["id"] for row in await store.supervisors()] == [elsewhere]


async def test_closing_a_notifier_does_not_report_it_as_lost(store: Store) -> None:
    notifier = await store.listen(lambda _channel, _payload: None)
    lost = notifier.lost
    await notifier.close()
    assert isinstance(lost, asyncio.Future)
    assert not lost.done()
