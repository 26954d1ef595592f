"""C88, llm: the retries of the client library multiply with those of the job."""

from __future__ import annotations

import pytest

import agentrt
from agentrt import Agent, Retry
from agentrt.agents import llm_task
from agentrt.agents.llm_task import LlmAnswer
from tests.agents import conftest
from tests.agents.fake_llm import FakeLlm, Provider, both, error
from tests.conftest import supervising
from tests.support import Sql

pytestmark = pytest.mark.case
llm = conftest.llm
quick: Agent[..., LlmAnswer] = Agent(llm_task.fn, name="llm_task", retry=Retry(max_attempts=3, base_s=0.05))


@both
async def test_a_job_makes_as_many_requests_as_it_has_attempts(
    database: str, sql: Sql, llm: FakeLlm, client: agentrt.Client, provider: Provider
) -> None:
    llm.says(error(500))
    async with supervising(database, quick, poll_s=600):
        row = await sql.until((await quick.send("Hi", provider=provider)).id, "failed", "succeeded")

    assert (row["state"], row["reason"], row["attempt_count"]) == ("failed", "error", 3)
    assert await sql.value("select count(*) from agentrt.attempts") == 3
    assert len(llm.requests) == 3
