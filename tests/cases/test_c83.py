"""C83, llm: a used-up quota looks like a rate limit, and is retried through the whole budget."""

from __future__ import annotations

import pytest

import agentrt
from agentrt import Agent, Retry
from agentrt.agents import llm_task
from agentrt.agents.llm_task import LlmAnswer
from tests.agents import conftest
from tests.agents.fake_llm import FakeLlm, answer, error
from tests.conftest import supervising
from tests.support import Sql

pytestmark = pytest.mark.case
llm = conftest.llm
quick: Agent[..., LlmAnswer] = Agent(llm_task.fn, name="llm_task", retry=Retry(max_attempts=3, base_s=0.05))


async def test_a_used_up_quota_ends_the_job_after_one_request(
    database: str, sql: Sql, llm: FakeLlm, client: agentrt.Client
) -> None:
    llm.says(error(429, code="insufficient_quota"))
    async with supervising(database, quick, poll_s=600):
        row = await sql.until((await quick.send("Hi")).id, "failed", "succeeded")

    assert (row["state"], row["reason"], row["attempt_count"]) == ("failed", "fatal", 1)
    assert "out of credit" in row["last_error"]
    assert len(llm.requests) == 1


async def test_a_plain_429_is_retried_with_backoff(
    database: str, sql: Sql, llm: FakeLlm, client: agentrt.Client
) -> None:
    llm.says(error(429), error(429), answer("openai", "yes"))
    async with supervising(database, quick, poll_s=600):
        row = await sql.until((await quick.send("Hi")).id, "failed", "succeeded")

    assert (row["state"], row["attempt_count"]) == ("succeeded", 3)
    assert len(llm.requests) == 3
    failed = await sql.rows("select attempt, reason from agentrt.attempts order by fence")
    assert [(one["attempt"], one["reason"]) for one in failed] == [(1, "error"), (2, "error")]
