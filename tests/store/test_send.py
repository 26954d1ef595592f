"""send: messages become jobs, all or none, in their order; a dedup key makes one job for good."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from agentrt.errors import StoreError
from agentrt.model import Sender, Sent, State, StepMark
from agentrt.store import Store
from tests.conftest import Clock
from tests.store.verbs import (
    claim,
    claim_one,
    elsewhere,
    fail,
    message,
    others,
    row_of,
    running_one,
    send,
    send_one,
    state_of,
    states_of,
    succeed,
)


async def test_the_answers_are_in_the_order_of_the_messages(store: Store) -> None:
    ids = await send(store, *(message(f"agent-{n}") for n in range(20)))
    assert len(set(ids)) == 20
    assert [(await row_of(store, job_id))["job_type"] for job_id in ids] == [f"agent-{n}" for n in range(20)]


async def test_the_answers_are_in_order_with_mailboxes_and_dedup_keys_too(store: Store) -> None:
    ids = await send(store, *(message(f"agent-{n}", key=f"k{n % 3}", dedup=f"d{n}") for n in reversed(range(20))))
    assert [(await row_of(store, job_id))["job_type"] for job_id in ids] == [f"agent-{n}" for n in reversed(range(20))]


async def test_no_message_is_no_job(store: Store) -> None:
    assert await store.send([]) == []


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_payload_comes_back_to_the_letter(store: Store, key: str | None) -> None:
    payload = '{"z":1e17,"a":1.10,"Ω":"🦦 \\u2028 \\\\","n":12345678901234567890,"z2":[ ],"":null}'
    await send_one(store, key=key, payload=payload.encode())
    assert (await claim_one(store)).payload == payload


async def test_names_may_hold_any_text(store: Store) -> None:
    name = "'; drop table jobs; --\\ \" % {} $1 :agent 🦦\n"
    job_id = await send_one(store, name, key=name, dedup=name)
    job = await claim_one(store, name)
    assert (job.id, job.agent, job.key) == (job_id, name, name)


async def test_what_a_message_says_is_kept(store: Store) -> None:
    parent = await running_one(store)
    said = message("b", "k", priority=2, max_attempts=7, step=StepMark("send:b#0"))
    (sent,) = await store.send([said], sender=Sender(parent.id, parent.fence))
    row = await row_of(store, sent.id)
    assert (row["job_type"], row["key"], row["priority"], row["max_attempts"]) == ("b", "k", 2, 7)
    assert (row["parent"], row["root"], row["hops"]) == (parent.id, parent.id, 1)
    assert (await claim_one(store, "b")).root == parent.id


async def test_a_message_without_a_root_is_its_own(store: Store) -> None:
    job_id = await send_one(store)
    assert (await claim_one(store)).root == job_id


async def test_a_delayed_message_cannot_be_claimed(store: Store, clock: Clock) -> None:
    ids = await send(
        store,
        message(delay_s=10.0),
        message(key="k", delay_s=10.0),
        message(run_at=datetime.now(UTC) + timedelta(seconds=10)),
    )
    assert await states_of(store, ids) == [State.scheduled] * 3
    assert await claim(store) == []


async def test_a_moment_that_has_passed_is_now(store: Store) -> None:
    ids = await send(store, message(run_at=datetime(2001, 1, 1, tzinfo=UTC)), message(delay_s=-5.0))
    assert await states_of(store, ids) == [State.ready] * 2


async def test_a_delay_counts_on_the_clock_of_the_store(store: Store, clock: Clock) -> None:
    await clock.advance(86_400)
    job_id = await send_one(store, delay_s=10.0)
    assert await state_of(store, job_id) == State.scheduled
    await clock.advance(11)
    assert (await store.due(10))[0] == 1


@pytest.mark.parametrize("more", [{}, {"dedup": "d"}, {"key": "k"}])
async def test_a_batch_is_stored_whole_or_not_at_all(store: Store, more: dict[str, str]) -> None:
    batch = [message(**more), message("b", payload=b'{"broken":'), message("c", "other")]  # type: ignore[arg-type]
    with pytest.raises(StoreError):
        await store.send(batch)
    assert await store.jobs(state=None, agent=None, key=None, limit=10) == []
    assert [sent.existed for sent in await store.send([batch[0], batch[2]])] == [False, False]


async def test_an_error_does_not_show_what_was_sent(store: Store) -> None:
    with pytest.raises(StoreError) as caught:
        await store.send([message(priority=4711, payload=b'{"password":"hunter2"}')])
    assert "hunter2" not in str(caught.value)


async def test_a_batch_may_have_more_than_500_mailboxes(store: Store) -> None:
    ids = await send(store, *(message(key=f"k{n % 1100}") for n in range(1200)))
    assert len(set(ids)) == 1200
    jobs = [job for _ in range(12) for job in await claim(store)]
    assert [job.id for job in jobs] == ids[:1100]


async def test_a_dedup_key_makes_one_job_of_a_batch(store: Store) -> None:
    first, second, third, fourth = await store.send(
        [message(dedup="d"), message(dedup="d"), message(), message("b", dedup="d")]
    )
    assert (first.existed, second) == (False, Sent(first.id, existed=True))
    assert (third.existed, fourth.existed) == (False, False)
    assert len({first.id, third.id, fourth.id}) == 3
    assert len(await store.jobs(state=None, agent=None, key=None, limit=10)) == 3


async def test_a_dedup_key_makes_one_job_whoever_sends_at_the_same_time(store: Store) -> None:
    async with others(store, 8) as stores:
        answers = await asyncio.gather(
            *(each.send([message(key="k", dedup=f"d{n}") for n in range(20)]) for each in [*stores, *reversed(stores)])
        )
    for answer in zip(*answers, strict=True):
        assert len({sent.id for sent in answer}) == 1
        assert [sent.existed for sent in answer].count(False) == 1
    assert len(await store.jobs(state=None, agent=None, key=None, limit=100)) == 20


@pytest.mark.parametrize("ending", [succeed, fail])
async def test_a_dedup_key_answers_with_the_job_also_after_it_has_ended(store: Store, ending: object) -> None:
    job_id = await send_one(store, dedup="d")
    assert await store.send([message(dedup="d")]) == [Sent(job_id, existed=True)]
    job = await claim_one(store)
    assert await store.send([message(dedup="d")]) == [Sent(job_id, existed=True)]
    await (succeed if ending is succeed else fail)(store, job)
    assert await store.send([message(dedup="d"), message("b", dedup="d")]) != [Sent(job_id, existed=True)]
    assert (await store.send([message(dedup="d")]))[0] == Sent(job_id, existed=True)
    assert await claim(store, supervisor=elsewhere) == []


async def test_a_repeated_send_of_a_dedup_key_leaves_the_job_as_it_was(store: Store) -> None:
    job_id = await send_one(store, payload=b'{"first":1}', dedup="d")
    assert await send_one(store, payload=b'{"second":2}', dedup="d", priority=0, delay_s=60.0) == job_id
    job = await claim_one(store)
    assert (job.payload, job.priority) == ('{"first":1}', 5)
