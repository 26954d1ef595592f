"""C87, llm: a stream that falls silent in its middle hangs the job for hours, while its lease is renewed."""

from __future__ import annotations

import asyncio

import pytest

import agentrt
from agentrt import Agent, Retry
from agentrt.agents import llm_task
from agentrt.agents.llm_task import LlmAnswer
from tests.agents import conftest
from tests.agents.fake_llm import FakeLlm, Reply, answer, idle_s, openai_chunks, silence, stream
from tests.conftest import supervising
from tests.support import Sql

pytestmark = pytest.mark.case
llm = conftest.llm
quick: Agent[..., LlmAnswer] = Agent(llm_task.fn, name="llm_task", retry=Retry(max_attempts=3, base_s=0.05))
half = stream(*openai_chunks("a", "b", "c", finish=None), then="silence")


@pytest.mark.parametrize("reply", [half, silence], ids=["half", "never"])
async def test_silence_over_the_idle_limit_is_a_failure_that_is_retried(
    database: str, sql: Sql, llm: FakeLlm, client: agentrt.Client, reply: Reply
) -> None:
    llm.says(reply, answer("openai", "yes"))
    async with supervising(database, quick, poll_s=600):
        row = await sql.until((await quick.send("Hi")).id, "failed", "succeeded")

    assert (row["state"], row["attempt_count"]) == ("succeeded", 2)
    assert f"was silent for {idle_s:g} s" in await sql.value("select text from agentrt.attempts where reason = 'error'")
    assert len(llm.requests) == 2


async def test_a_cancel_ends_a_job_whose_stream_is_silent(
    database: str, sql: Sql, llm: FakeLlm, client: agentrt.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRT_LLM_IDLE_S", "600")
    llm.says(half)
    async with supervising(database, quick, poll_s=600):
        job = await quick.send("Hi")
        await asyncio.wait_for(llm.asked.wait(), 30)
        assert await job.cancel("enough")
        row = await sql.until(job.id, "cancelled", "failed", "succeeded")

    assert row["state"] == "cancelled"
    assert len(llm.requests) == 1


async def test_a_shutdown_hands_back_a_job_whose_stream_is_silent(
    database: str, sql: Sql, llm: FakeLlm, client: agentrt.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRT_LLM_IDLE_S", "600")
    llm.says(half)
    async with asyncio.timeout(60), supervising(database, quick, poll_s=600, drain_s=0.2):
        job = await quick.send("Hi")
        await llm.asked.wait()

    row = await sql.job(job.id)
    assert (row["state"], row["attempt_count"]) == ("ready", 0)
