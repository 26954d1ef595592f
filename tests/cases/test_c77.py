"""C77, discord: a text over 2,000 characters is answered 400, and the whole notice is lost or retried in vain."""

from __future__ import annotations

import pytest

import agentrt
from agentrt.agents import discord_notify
from agentrt.agents.discord_text import units
from agentrt.testing.fake_discord import FakeDiscord
from tests.conftest import supervising
from tests.support import Sql

pytestmark = pytest.mark.case
code = "```py\n" + "x = 1\n" * 1_490 + "```"
texts = ["x" * 1_999, "x" * 2_000, "x" * 2_001, "x" * 9_000, "🦦" * 9_000, "word " * 1_800, code]


def _bare(text: str) -> str:
    return text.replace("```py\n", "").replace("```", "").replace("\n", "").replace(" ", "")


async def test_texts_of_any_length_arrive_whole_in_order_and_without_a_400(
    database: str, sql: Sql, client: agentrt.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeDiscord(limit=50) as discord:
        for number in range(len(texts)):
            monkeypatch.setenv(f"DISCORD_WEBHOOK_T{number}", discord.webhook(f"t{number}"))
        async with supervising(database, discord_notify, poll_s=600):
            jobs = [await discord_notify.send(text, target=f"t{number}") for number, text in enumerate(texts)]
            notices = [await job.result(timeout_s=30) for job in jobs]

    assert set(discord.statuses()) == {200}
    for number, (text, notice) in enumerate(zip(texts, notices, strict=True)):
        posts = [post for post in discord.messages if post.webhook == f"t{number}"]
        assert notice.message_ids == [post.id for post in posts]
        assert _bare("".join(post.content for post in posts)) == _bare(text)
        assert all(units(post.content) <= 2_000 and post.content.count("```") % 2 == 0 for post in posts)
    assert [len(notice.message_ids) for notice in notices[:4]] == [1, 1, 2, 5]
    rows = await sql.rows("select state, attempt from agentrt.history")
    assert [(row["state"], row["attempt"]) for row in rows] == [("succeeded", 1)] * len(texts)
