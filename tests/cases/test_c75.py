"""C75, ordering: two messages of one conversation are handled at the same time, or in the wrong order."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict

import pytest

import agentrt
from agentrt import Retry, agent
from tests.conftest import Clock, supervising

pytestmark = pytest.mark.case
messages_count = 10
keys = ["alice", "bob", "carol", "dave"]


class Watch:
    """Who is being handled, and what was, by key."""

    def __init__(self) -> None:
        self.inside: Counter[str] = Counter()
        self.most_of_a_key = 0
        self.most_at_once = 0
        self.handled: dict[str, list[int]] = defaultdict(list)

    async def handle(self, n: int) -> None:
        key = agentrt.current().key
        assert key is not None
        self.inside[key] += 1
        self.most_of_a_key = max(self.most_of_a_key, self.inside[key])
        self.most_at_once = max(self.most_at_once, self.inside.total())
        try:
            await asyncio.sleep(random.uniform(0, 0.1))  # the agent's work
        finally:
            self.inside[key] -= 1
        self.handled[key].append(n)


async def test_the_messages_of_a_key_are_handled_one_at_a_time_in_order_over_all_processes_and_keys_beside_each_other(
    database: str, client: agentrt.Client
) -> None:
    watch = Watch()

    @agent
    async def chat(n: int) -> None:
        await watch.handle(n)

    async with (
        supervising(database, chat, slots=2, poll_s=600) as one,  # too few for all keys: both have to take part
        supervising(database, chat, slots=2, poll_s=600) as two,
    ):
        jobs = [await chat[key].send(n) for n in range(messages_count) for key in keys]
        await asyncio.gather(*(job.result(timeout_s=60) for job in jobs))
        assert one.stats.claimed["poll"] + two.stats.claimed["poll"] == 0
        assert all(supervisor.stats.outcomes["succeeded"] for supervisor in (one, two))
    assert watch.handled == {key: list(range(messages_count)) for key in keys}
    assert watch.most_of_a_key == 1
    assert watch.most_at_once > 1


async def test_a_message_that_waits_for_its_retry_keeps_its_place(database: str, client: agentrt.Client) -> None:
    watch = Watch()

    @agent(retry=Retry(max_attempts=3, base_s=0.2, jitter=0))
    async def chat(n: int) -> None:
        if n % 3 == 0 and agentrt.current().attempt == 1:
            raise ValueError("not yet")
        await watch.handle(n)

    async with supervising(database, chat, slots=8, poll_s=600), supervising(database, chat, slots=8, poll_s=600):
        jobs = await agentrt.send_many([chat[key].message(n) for n in range(messages_count) for key in keys])
        await asyncio.gather(*(job.result(timeout_s=60) for job in jobs))
    assert watch.handled == {key: list(range(messages_count)) for key in keys}
    assert watch.most_of_a_key == 1


async def test_in_loose_order_ready_messages_pass_one_that_waits_for_its_retry_and_still_run_one_at_a_time(
    database: str, clock: Clock, client: agentrt.Client
) -> None:
    watch = Watch()

    @agent(retry=Retry(max_attempts=3, base_s=600, jitter=0), order="loose")
    async def chat(n: int) -> None:
        if n == 0 and agentrt.current().attempt == 1:
            raise ValueError("not yet")
        await watch.handle(n)

    async with supervising(database, chat, slots=8, poll_s=600), supervising(database, chat, slots=8, poll_s=600):
        first, *rest = await agentrt.send_many([chat["alice"].message(n) for n in range(messages_count)])
        await asyncio.gather(*(job.result(timeout_s=60) for job in rest))
        await clock.advance(601)
        await chat["bob"].options(delay_s=0.05).send(0)  # a new moment to wait for: they look for what is due
        await first.result(timeout_s=60)
    assert watch.handled["alice"] == [*range(1, messages_count), 0]
    assert watch.most_of_a_key == 1


async def test_messages_of_one_key_sent_from_many_tasks_at_once_are_handled_one_at_a_time(
    database: str, client: agentrt.Client
) -> None:
    watch = Watch()

    @agent
    async def chat(n: int) -> None:
        await watch.handle(n)

    async with supervising(database, chat, slots=8, poll_s=600), supervising(database, chat, slots=8, poll_s=600):
        jobs = await asyncio.gather(*(chat["alice"].send(n) for n in range(messages_count)))
        await asyncio.gather(*(job.result(timeout_s=60) for job in jobs))
    assert sorted(watch.handled["alice"]) == list(range(messages_count))
    assert watch.most_of_a_key == 1
