"""C85, llm: a Retry-After that is a date, huge, negative or rubbish kills the job, or puts the worker to sleep for hours."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from aiohttp import web

import agentrt
from agentrt import Agent, Retry
from agentrt.agents import llm_task
from agentrt.agents.llm_task import LlmAnswer
from tests.agents import conftest
from tests.agents.fake_llm import FakeLlm, Reply, answer, error
from tests.conftest import supervising
from tests.support import Sql, eventually

pytestmark = pytest.mark.case
llm = conftest.llm
quick: Agent[..., LlmAnswer] = Agent(llm_task.fn, name="llm_task", retry=Retry(max_attempts=3, base_s=0.05))
_wait_s = """
select extract(epoch from h.claimed_at - a.ended_at)::float8
  from agentrt.history h join agentrt.attempts a on a.job_id = h.id
"""


def _http_date(ahead_s: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=ahead_s), usegmt=True)


async def _in_three_seconds(request: web.Request, closing: asyncio.Event) -> web.StreamResponse:
    """Counts from the answer, however long the runtime took to ask."""
    return await error(429, {"Retry-After": _http_date(3)})(request, closing)


@pytest.mark.parametrize(
    ("refusal", "least_s"),
    [(error(429, {"Retry-After": "2"}), 2), (error(503, {"Retry-After": "1.5"}), 1.5), (_in_three_seconds, 1)],
    ids=["429, 2", "503, 1.5", "429, a date"],
)
async def test_a_told_wait_is_kept_and_costs_no_attempt(
    database: str, sql: Sql, llm: FakeLlm, client: agentrt.Client, refusal: Reply, least_s: float
) -> None:
    llm.says(refusal, answer("openai", "yes"))
    async with supervising(database, quick, poll_s=600):
        row = await sql.until((await quick.send("Hi")).id, "failed", "succeeded")

    assert (row["state"], row["attempt_count"]) == ("succeeded", 1)
    assert await sql.value("select reason from agentrt.attempts") == "later"
    assert least_s <= await sql.value(_wait_s) < 20
    assert len(llm.requests) == 2


@pytest.mark.parametrize("told", ["past", "-1", "soon", ""])
async def test_a_wait_that_is_none_leaves_it_to_the_backoff(
    database: str, sql: Sql, llm: FakeLlm, client: agentrt.Client, told: str
) -> None:
    llm.says(error(503, {"Retry-After": _http_date(-3_600) if told == "past" else told}), answer("openai", "yes"))
    async with supervising(database, quick, poll_s=600):
        row = await sql.until((await quick.send("Hi")).id, "failed", "succeeded")

    assert (row["state"], row["attempt_count"]) == ("succeeded", 2)
    assert await sql.value("select reason from agentrt.attempts") == "error"
    assert len(llm.requests) == 2


async def test_a_very_long_wait_becomes_a_delayed_retry_that_frees_the_slot(
    database: str, sql: Sql, llm: FakeLlm, client: agentrt.Client
) -> None:
    llm.says(error(429, {"Retry-After": "999999"}), answer("openai", "yes"))
    async with supervising(database, quick, poll_s=600, slots=1):
        waiting = await quick.send("Hi")

        async def put_off() -> bool:
            return bool(await sql.value("select count(*) = 1 from agentrt.attempts where reason = 'later'"))

        await eventually(put_off)
        other = await quick.send("Hi")
        assert (await other.result(timeout_s=30)).text == "yes"

        row = await sql.job(waiting.id)
        assert (row["state"], row["attempt_count"]) == ("scheduled", 0)
        ahead_s = await sql.value(
            "select extract(epoch from run_after - clock_timestamp())::float8 from agentrt.jobs where id = $1",
            waiting.id,
        )
        assert 7 * 86_400 - 60 < ahead_s < 7 * 86_400 + 60  # cut to a week
