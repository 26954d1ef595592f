"""C80, discord: a deleted webhook or a wrong token is retried for ever, or blocks every other target."""

from __future__ import annotations

import pytest

import agentrt
from agentrt.agents import discord_notify
from agentrt.testing.fake_discord import FakeDiscord
from tests.conftest import supervising
from tests.support import Sql

pytestmark = pytest.mark.case


async def test_a_dead_webhook_fails_its_jobs_at_once_and_the_other_goes_on(
    database: str, sql: Sql, client: agentrt.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeDiscord(limit=50) as discord:
        monkeypatch.setenv("DISCORD_WEBHOOK_GONE", discord.webhook("gone"))
        monkeypatch.setenv("DISCORD_WEBHOOK_WRONG", discord.webhook("wrong") + "x")
        monkeypatch.setenv("DISCORD_WEBHOOK_FINE", discord.webhook("fine"))
        discord.delete("gone")
        async with supervising(database, discord_notify, poll_s=600):
            bad = [await discord_notify.send(f"n{n}", target=name) for name in ("gone", "wrong") for n in range(2)]
            fine = [await discord_notify.send(f"n{n}", target="fine") for n in range(2)]
            rows = [await sql.until(job.id, "failed", "succeeded") for job in bad]
            for job in fine:
                await job.result(timeout_s=30)

    assert {(row["state"], row["reason"], row["attempt_count"]) for row in rows} == {("failed", "fatal", 1)}
    assert all(
        "404, code 10015" in row["last_error"] and "set DISCORD_WEBHOOK_GONE" in row["last_error"] for row in rows[:2]
    )
    assert all(
        "401, code 50027" in row["last_error"] and "set DISCORD_WEBHOOK_WRONG" in row["last_error"] for row in rows[2:]
    )
    # The second notice of each dead webhook is refused without a request.
    assert sorted(discord.statuses()) == [200, 200, 401, 404]
    assert sorted(discord.contents("fine")) == ["n0", "n1"]
