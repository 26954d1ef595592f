"""C81, discord: an empty or blank text is refused by the service, and the job is retried in vain."""

from __future__ import annotations

import pytest

import agentrt
from agentrt import PayloadInvalid, to
from agentrt.agents import discord_notify, llm_task
from agentrt.testing.fake_discord import FakeDiscord
from tests.agents import conftest
from tests.agents.fake_llm import FakeLlm, answer
from tests.conftest import supervising
from tests.support import Sql

pytestmark = pytest.mark.case
llm = conftest.llm


async def test_a_blank_text_fails_at_once_with_its_reason_and_without_a_request(
    database: str, sql: Sql, client: agentrt.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeDiscord() as discord, supervising(database, discord_notify, poll_s=600):
        monkeypatch.setenv("DISCORD_WEBHOOK", discord.webhook())
        blank = [await discord_notify.send(text) for text in ("", " \n \n", "\u200b")]
        none = await to("discord_notify").send(content=None)
        rows = [await sql.until(job.id, "failed", "succeeded") for job in blank]
        invalid = await sql.until(none.id, "failed", "succeeded")

    assert {(row["state"], row["reason"], row["attempt_count"]) for row in rows} == {("failed", "fatal", 1)}
    assert all("The content is blank" in row["last_error"] for row in rows)
    assert (invalid["state"], invalid["reason"]) == ("failed", "invalid")
    assert "content" in invalid["last_error"]
    assert discord.requests == []


async def test_none_is_refused_at_the_sender_that_knows_the_agent(client: agentrt.Client, sql: Sql) -> None:
    with pytest.raises(PayloadInvalid, match="content"):
        await discord_notify.send(None)  # type: ignore[arg-type]  # the fault of the case
    assert await sql.value("select count(*) from agentrt.all_jobs") == 0


async def test_an_empty_answer_of_a_model_is_not_sent_on(
    database: str, sql: Sql, llm: FakeLlm, client: agentrt.Client
) -> None:
    llm.says(answer("openai", "", " \n"))
    async with supervising(database, llm_task, discord_notify, poll_s=600):
        job = await llm_task.send("Hi", notify="discord_notify")
        row = await sql.until(job.id, "failed", "succeeded")

    assert (row["state"], row["reason"], row["attempt_count"]) == ("failed", "fatal", 1)
    assert await sql.value("select count(*) from agentrt.all_jobs where job_type = 'discord_notify'") == 0
