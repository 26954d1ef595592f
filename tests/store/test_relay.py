"""relay: jobs end and a message of an attempt is sent in one statement, each half as if it were alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentrt.errors import StoreBusy
from agentrt.model import Claimed, Finish, NewJob, Sender, Sent, State, StepMark
from agentrt.store import Store
from agentrt.store.postgres import PostgresStore
from tests.conftest import Clock
from tests.store.verbs import (
    claim,
    claim_one,
    elsewhere,
    here,
    lapse,
    message,
    policy,
    record,
    row_of,
    running_one,
    send,
    state_of,
    succeed,
    wanted,
)


def said(agent: str = "b", step: str = "send:b#0") -> NewJob:
    return message(agent, step=StepMark(step))


async def relay(
    store: Store, sender: Claimed, *ended: Claimed, job: NewJob | None = None
) -> tuple[set[int], Sent | None]:
    """End these jobs and send a message into a slot that is free for it."""
    job = job or said()
    taking = Sender(sender.id, sender.fence, takes=wanted(here, [(policy(job.agent), 1)], 1))
    return await store.relay([Finish(one.id, one.fence, State.succeeded, "1") for one in ended], job, taking)


async def two_running(store: Store) -> tuple[Claimed, Claimed]:
    """One that has ended, and a younger one that sends."""
    await send(store, message(), message())
    ended, sender = sorted(await claim(store), key=lambda job: job.id)
    return ended, sender


async def test_a_relay_ends_jobs_and_hands_a_message_over_in_one_statement(store: PostgresStore) -> None:
    ended, sender = await two_running(store)
    before = store.statements
    accepted, sent = await relay(store, sender, ended)
    assert store.statements - before == 1
    assert accepted == {ended.id}
    assert sent is not None
    assert sent.taken is not None
    row = await row_of(store, sent.id)
    assert (row["state"], row["parent"], row["owner_id"]) == (State.running, sender.id, here)
    assert ((await row_of(store, ended.id))["state"], (await row_of(store, ended.id))["result"]) == (
        State.succeeded,
        "1",
    )
    assert await claim(store, "b") == []
    assert await succeed(store, replace(sender, id=sent.id, fence=1)) == {sent.id}


async def test_an_end_that_comes_too_late_is_refused_and_the_message_is_sent(store: Store, clock: Clock) -> None:
    late = await running_one(store)
    assert (await lapse(store, clock)).made_ready == [late.id]
    await claim_one(store, supervisor=elsewhere)
    sender = await running_one(store)
    accepted, sent = await relay(store, sender, late)
    assert accepted == set()
    assert sent is not None
    assert await state_of(store, late.id) == State.running
    assert await state_of(store, sent.id) == State.running


async def test_a_sender_that_lost_its_job_sends_nothing_and_the_ends_count(store: Store, clock: Clock) -> None:
    late = await running_one(store)
    assert (await lapse(store, clock)).made_ready == [late.id]
    current = await claim_one(store, supervisor=elsewhere)
    ended = await running_one(store)
    assert await relay(store, late, ended) == ({ended.id}, None)
    assert await state_of(store, ended.id) == State.succeeded
    assert await claim(store, "b") == []
    assert (await relay(store, current))[1] is not None


async def test_a_relay_that_is_repeated_sends_once_and_is_handed_over_all_the_same(store: Store) -> None:
    ended, sender = await two_running(store)
    _, first = await relay(store, sender, ended)
    accepted, second = await relay(store, sender, ended)
    assert accepted == set()
    assert first is not None
    assert second is not None
    assert (second.id, second.taken is not None) == (first.id, True)
    assert await store.finished_by([(ended.id, ended.fence)]) == {ended.id}


async def test_a_message_behind_a_ready_one_of_its_agent_is_not_handed_over(store: Store) -> None:
    ended, sender = await two_running(store)
    await send(store, message("b"))
    accepted, sent = await relay(store, sender, ended)
    assert accepted == {ended.id}
    assert sent is not None
    assert sent.taken is None
    assert await state_of(store, sent.id) == State.ready


async def test_the_end_of_a_job_that_was_asked_answers_the_asker(store: Store) -> None:
    asker = await running_one(store)
    asks = message("a", step=StepMark("ask:a#0"), asks=True)
    (asked,) = await store.send([asks], sender=Sender(asker.id, asker.fence))
    ended = await claim_one(store)
    assert ended.id == asked.id
    sender = await running_one(store)
    await relay(store, sender, ended)
    ((_, step, answer),) = await store.answers([(asker.id, "ask:a#0")])
    assert (step, answer.output) == ("ask:a#0", "1")


async def test_an_end_that_somebodys_transaction_holds_up_fails_the_relay_which_has_changed_nothing(
    store: PostgresStore,
) -> None:
    asker = await running_one(store)
    asks = message("a", step=StepMark("ask:a#0"), asks=True)
    await store.send([asks], sender=Sender(asker.id, asker.fence))
    ended = await claim_one(store)
    sender = await running_one(store)
    async with store.transaction() as connection:
        await connection.execute("select 1 from agentrt.jobs where id = $1 for update", asker.id)
        with pytest.raises(StoreBusy):
            await relay(store, sender, ended)
    assert await state_of(store, ended.id) == State.running
    assert await record(store, sender, "send:b#0", '"it was not taken"') == '"it was not taken"'
    assert await claim(store, "b") == []
