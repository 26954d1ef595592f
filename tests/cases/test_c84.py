"""C84, llm: a prompt that is too long (or another request that can never succeed) is sent again and again."""

from __future__ import annotations

import pytest

import agentrt
from agentrt import Agent, Retry
from agentrt.agents import llm_task
from agentrt.agents.llm_task import LlmAnswer
from tests.agents import conftest
from tests.agents.fake_llm import FakeLlm, error
from tests.conftest import supervising
from tests.support import Sql

pytestmark = pytest.mark.case
llm = conftest.llm
quick: Agent[..., LlmAnswer] = Agent(llm_task.fn, name="llm_task", retry=Retry(max_attempts=3, base_s=0.05))
too_long = "This model's maximum context length is 8 tokens"


@pytest.mark.parametrize(
    ("code", "says"), [(400, "too long"), (401, "the key"), (403, "the key"), (404, "not exist"), (422, "the request")]
)
async def test_a_request_that_can_never_succeed_is_made_once(
    database: str, sql: Sql, llm: FakeLlm, client: agentrt.Client, code: int, says: str
) -> None:
    llm.says(error(code, code="context_length_exceeded" if code == 400 else None))
    async with supervising(database, quick, poll_s=600):
        row = await sql.until((await quick.send("Hi")).id, "failed", "succeeded")

    assert (row["state"], row["reason"], row["attempt_count"]) == ("failed", "fatal", 1)
    assert says in row["last_error"]
    assert len(llm.requests) == 1


async def test_a_server_error_with_the_same_text_follows_the_retry_rule(
    database: str, sql: Sql, llm: FakeLlm, client: agentrt.Client
) -> None:
    llm.says(error(500, message=too_long))
    async with supervising(database, quick, poll_s=600):
        row = await sql.until((await quick.send("Hi")).id, "failed", "succeeded")

    assert (row["state"], row["reason"], row["attempt_count"]) == ("failed", "error", 3)
    assert len(llm.requests) == 3
