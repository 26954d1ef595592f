"""C82, discord: a retry after an unclear end posts again what had arrived.

Parts that were confirmed are steps and are not sent again. For the one whose answer was lost the choice is at least once.
"""

from __future__ import annotations

import pytest
from structlog.testing import CapturingLogger

import agentrt
from agentrt import Agent, Retry
from agentrt.agents import discord_notify, discord_wire
from agentrt.agents.discord_notify import Notice
from agentrt.testing.fake_discord import FakeDiscord
from tests.conftest import supervising
from tests.support import Sql

pytestmark = pytest.mark.case
quick: Agent[..., Notice] = Agent(discord_notify.fn, name="discord_notify", retry=Retry(max_attempts=3, base_s=0.05))


async def test_a_failed_part_is_sent_again_and_the_confirmed_ones_are_not(
    database: str, sql: Sql, client: agentrt.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeDiscord(limit=50) as discord, supervising(database, quick, poll_s=600):
        monkeypatch.setenv("DISCORD_WEBHOOK", discord.webhook())
        discord.on_post = lambda _post: discord.fail_next(500) if len(discord.messages) == 1 else None
        job = await quick.send("word " * 1_000)
        row = await sql.until(job.id, "succeeded", "failed")

    assert (row["state"], row["attempt_count"]) == ("succeeded", 2)
    assert discord.statuses() == [200, 500, 200, 200]
    assert len(set(discord.contents())) >= 2
    assert "".join(discord.contents()).count("word") == 1_000


async def test_a_post_whose_answer_was_lost_is_sent_again_and_logged(
    database: str, sql: Sql, client: agentrt.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CapturingLogger()
    monkeypatch.setattr(discord_wire, "_log", log)
    async with FakeDiscord(limit=50) as discord, supervising(database, quick, poll_s=600):
        monkeypatch.setenv("DISCORD_WEBHOOK", discord.webhook())
        discord.cut_next(stored=True)
        job = await quick.send("x")
        row = await sql.until(job.id, "succeeded", "failed")

    assert (row["state"], row["attempt_count"]) == ("succeeded", 2)
    assert discord.contents() == ["x", "x"]
    assert [call.args for call in log.calls] == [("discord.maybe_sent",)]
    (failed,) = await sql.rows("select reason, text from agentrt.attempts where job_id = $1", job.id)
    assert failed["reason"] == "error"
    assert "at least once" in failed["text"]
