"""C86, llm: an answer that was cut off, filtered or empty is stored as if it were the result."""

from __future__ import annotations

from typing import Any

import pytest

import agentrt
from agentrt import Agent, Retry
from agentrt.agents import llm_task
from agentrt.agents.llm_task import LlmAnswer
from tests.agents import conftest
from tests.agents.fake_llm import FakeLlm, answer
from tests.conftest import supervising
from tests.support import Sql

pytestmark = pytest.mark.case
llm = conftest.llm
quick: Agent[..., LlmAnswer] = Agent(llm_task.fn, name="llm_task", retry=Retry(max_attempts=3, base_s=0.05))
schema: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}}


@pytest.mark.parametrize(
    ("text", "finish", "asked", "says"),
    [
        ("", "length", None, "cut off before any text by max_tokens=5"),
        ('{"name": "ot', "length", schema, "cut off inside the JSON by max_tokens=5"),
        ("Once upon", "content_filter", None, "filter stopped the answer"),
        (" \n", "stop", None, "with an empty answer"),
    ],
)
async def test_an_answer_that_is_none_fails_the_job_after_one_request(
    database: str,
    sql: Sql,
    llm: FakeLlm,
    client: agentrt.Client,
    text: str,
    finish: str,
    asked: dict[str, Any] | None,
    says: str,
) -> None:
    llm.says(answer("openai", text, finish=finish))
    async with supervising(database, quick, poll_s=600):
        row = await sql.until((await quick.send("Hi", max_tokens=5, json_schema=asked)).id, "failed", "succeeded")

    assert (row["state"], row["reason"], row["attempt_count"]) == ("failed", "fatal", 1)
    assert says in row["last_error"]
    assert row["result"] is None
    assert len(llm.requests) == 1


async def test_a_text_that_was_cut_is_a_result_that_says_so(
    database: str, llm: FakeLlm, client: agentrt.Client
) -> None:
    llm.says(answer("openai", "Otters hold", finish="length"))
    async with supervising(database, quick, poll_s=600):
        got = await (await quick.send("Hi")).result(timeout_s=30)

    assert (got.text, got.finish, got.truncated) == ("Otters hold", "length", True)
    assert len(llm.requests) == 1
