"""crash_everywhere: says nothing of an agent that is safe, and of one that is not, after which crash and what."""

from __future__ import annotations

import random
import time
from typing import Any

import asyncpg
import pytest

import agentrt
from agentrt import Budget, Fail, JobFailed, Retry, agent, decide, step
from agentrt.testing import crash_everywhere

pytestmark = pytest.mark.timeout(300)


async def fetch(topic: str) -> str:
    return f"page about {topic}"


def count(text: str) -> int:
    return len(text)


@agent
async def critic(text: str) -> str:
    return f"{await step(count, text)} letters"


@agent
async def notify(text: str) -> None:
    """Nothing to do."""


async def store_draft(connection: Any, text: str) -> int:
    await connection.execute("insert into drafts(text) values ($1)", text)
    await notify.send(text)
    found: int = await connection.fetchval("select count(*) from drafts where text = $1", text)
    return found


@agent(budget=Budget(usd=10))
async def writer(topic: str) -> str:
    page = await step(fetch, topic)
    await agentrt.sleep(3600)
    verdict = await critic.ask(page)
    copies = await agentrt.transaction(store_draft, page)
    answer = await decide(f"publish {topic}?", ("yes", "no"), who="chief")
    await notify.send(f"{topic}: {answer.option}")
    return f"{page}, {verdict}, {copies} copy, {answer.option}"


async def drafts(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("drop table if exists drafts; create table drafts(text text)")
    await connection.close()


async def test_an_agent_with_every_verb_is_safe_wherever_it_crashes() -> None:
    result = await crash_everywhere(
        writer, "otters", agents=[critic, notify], decide=lambda _question, options: options[0], prepare=drafts
    )
    assert result == "page about otters, 17 letters, 1 copy, yes"


async def test_an_agent_that_keeps_something_outside_of_its_steps_is_found_out() -> None:
    calls = []

    async def next_number() -> int:
        calls.append(1)
        return len(calls)

    @agent
    async def forgetful() -> int:
        begun = len(calls)
        await step(next_number)
        return len(calls) - begun

    with pytest.raises(AssertionError, match="forgetful: 2 of 4 crashes") as failed:
        await crash_everywhere(forgetful)
    lines = str(failed.value).splitlines()
    assert "A crash after the record of next_number#0:" in lines
    assert "    result is 0, without the crash 1" in lines
    assert "A crash before the record of next_number#0:" not in lines


async def test_an_agent_that_does_something_else_when_it_is_run_again_is_found_out() -> None:
    @agent
    async def fickle() -> None:
        name = "first" if agentrt.current().attempt == 1 else "second"
        await step(count, "otters", name=name)

    with pytest.raises(AssertionError) as failed:
        await crash_everywhere(fickle)
    assert "A crash before the record of first#0:" in str(failed.value)
    assert "step second#0: kind is step, without the crash missing" in str(failed.value)


async def test_what_is_random_is_compared_with_what_was_recorded() -> None:
    @agent
    async def dice() -> list[float]:
        return [await step(random.random, name="throw"), await step(random.random, name="throw")]

    throws = await crash_everywhere(dice)
    assert len(throws) == 2


async def test_an_agent_that_fails_fails_wherever_it_crashes() -> None:
    @agent(retry=Retry(base_s=600))
    async def hopeless() -> None:
        await step(count, "otters")
        raise Fail("there is no such otter")

    with pytest.raises(JobFailed, match="no such otter"):
        await crash_everywhere(hopeless)


async def test_an_agent_with_one_attempt_does_not_survive_a_crash_and_that_is_said() -> None:
    @agent(retry=Retry(max_attempts=1))
    async def once() -> int:
        return await step(count, "otters")

    with pytest.raises(AssertionError, match=r"state is failed \(crashed\), without the crash succeeded"):
        await crash_everywhere(once)


async def test_retries_and_their_waits_take_no_time() -> None:
    failures = iter(range(10_000))

    def flaky() -> str:
        if next(failures) % 2 == 0:
            raise ValueError("not now")
        return "done"

    @agent
    async def patient() -> str:
        return await step(flaky, retry=Retry(base_s=3600, jitter=0))

    began = time.monotonic()
    assert await crash_everywhere(patient) == "done"
    assert time.monotonic() - began < 250  # an hour each, by the clock


async def test_a_wait_for_an_agent_that_was_not_given_is_named() -> None:
    @agent
    async def asks() -> str:
        return await critic.ask("otters")

    with pytest.raises(agentrt.UsageError, match=r"ask:critic#0.*agents=\[critic\]"):
        await crash_everywhere(asks)


async def test_a_question_without_anybody_to_answer_is_named() -> None:
    @agent
    async def asks() -> str:
        return (await decide("now?", ("yes", "no"))).option

    with pytest.raises(agentrt.UsageError, match=r"decide#0.*decide="):
        await crash_everywhere(asks)


async def test_a_question_that_nobody_answers_expires_to_its_default() -> None:
    @agent
    async def asks() -> str:
        return (await decide("now?", ("yes", "no"), within_s=86_400, default="no")).option

    assert await crash_everywhere(asks) == "no"
