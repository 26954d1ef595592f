"""C79, discord: mentions in a text that a model or a user wrote are live by default, and ping everybody."""

from __future__ import annotations

import pytest

import agentrt
from agentrt import agent, to
from agentrt.agents import discord_notify, llm_task
from agentrt.testing.fake_discord import FakeDiscord
from tests.agents import conftest
from tests.agents.fake_llm import FakeLlm, answer
from tests.conftest import supervising

pytestmark = pytest.mark.case
llm = conftest.llm
pings = "@everyone @here <@1> <@&2>"


@agent
async def reports_its_error() -> None:
    try:
        raise ValueError(f"no such user: {pings}")
    except ValueError as error:
        await to("discord_notify").send(content=f"It failed: {error}")


async def test_mentions_in_relayed_texts_are_off_unless_set_on_purpose(
    database: str, llm: FakeLlm, client: agentrt.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm.says(answer("openai", f"Hello {pings}"))
    async with FakeDiscord() as discord, supervising(database, discord_notify, llm_task, reports_its_error, poll_s=600):
        monkeypatch.setenv("DISCORD_WEBHOOK", discord.webhook())
        await llm_task.send("Hi", notify="discord_notify")
        await reports_its_error.send()
        await discord_notify.send(pings)
        await discord_notify.send("@here on purpose", allowed_mentions=["everyone"])
        await discord.wait_messages(4)

    wanted = [f"Hello {pings}", f"It failed: no such user: {pings}", pings, "@here on purpose"]
    assert sorted(discord.contents()) == sorted(wanted)
    for request in discord.requests:
        on_purpose = request.body["content"] == "@here on purpose"
        assert request.body["allowed_mentions"] == {"parse": ["everyone"] if on_purpose else []}
