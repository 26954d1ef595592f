"""The Discord double keeps the limits that Discord documents, and runs on its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from agentrt.agents import discord_notify
from agentrt.testing.fake_discord import FakeDiscord


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as one:
        yield one


async def post(session: aiohttp.ClientSession, url: str, **body: object) -> tuple[int, Any, dict[str, str]]:
    async with session.post(url, params={"wait": "true"}, json=body) as response:
        return response.status, await response.json(), dict(response.headers)


@pytest.mark.parametrize(
    ("body", "code", "path"),
    [
        ({"content": "🦦" * 2_001}, 50035, "content"),
        ({"content": 7}, 50035, "content"),
        ({"content": " \n"}, 50006, None),
        ({}, 50006, None),
        ({"content": "x", "username": ""}, 50035, "username"),
        ({"content": "x", "username": "x" * 81}, 50035, "username"),
        ({"content": "x", "allowed_mentions": {"parse": ["all"]}}, 50035, "allowed_mentions"),
        ({"content": "x", "flags": 64}, 50035, "flags"),
    ],
)
async def test_a_wrong_body_is_refused_with_discord_s_code(
    session: aiohttp.ClientSession, body: dict[str, object], code: int, path: str | None
) -> None:
    async with FakeDiscord() as discord:
        status, answer, _ = await post(session, discord.webhook(), **body)
    assert (status, answer["code"], [*answer.get("errors", {})]) == (400, code, [path] if path else [])
    assert discord.messages == []


async def test_two_thousand_code_points_are_taken_as_discord_takes_them(session: aiohttp.ClientSession) -> None:
    async with FakeDiscord() as discord:
        status, answer, _ = await post(session, discord.webhook(), content="🦦" * 2_000)
    assert (status, answer["id"]) == (200, discord.messages[0].id)


async def test_each_webhook_has_a_bucket_that_fills_again(session: aiohttp.ClientSession) -> None:
    async with FakeDiscord(limit=2, window_s=1.0) as discord:
        answers = [await post(session, discord.webhook(), content="x") for _ in range(3)]
        other = await post(session, discord.webhook("other"), content="x")
        await asyncio.sleep(answers[2][1]["retry_after"])
        again = await post(session, discord.webhook(), content="x")

    assert [status for status, _, _ in (*answers, other, again)] == [200, 200, 429, 200, 200]
    assert [headers["X-RateLimit-Remaining"] for _, _, headers in answers] == ["1", "0", "0"]
    _, body, headers = answers[2]
    assert 0 < body["retry_after"] <= 1.0
    assert (headers["Retry-After"], headers["X-RateLimit-Scope"], body["global"]) == ("1", "user", False)


async def test_the_global_limit_is_over_all_webhooks(session: aiohttp.ClientSession) -> None:
    async with FakeDiscord(global_limit=1) as discord:
        await post(session, discord.webhook(), content="x")
        status, body, headers = await post(session, discord.webhook("other"), content="x")
    assert (status, body["global"], headers["X-RateLimit-Global"]) == (429, True, "true")


async def test_without_wait_there_is_no_message_in_the_answer(session: aiohttp.ClientSession) -> None:
    async with FakeDiscord() as discord, session.post(discord.webhook(), json={"content": "x"}) as response:
        assert response.status == 204
    assert discord.contents() == ["x"]


async def test_waiting_for_messages_says_what_came(session: aiohttp.ClientSession) -> None:
    async with FakeDiscord() as discord:
        await post(session, discord.webhook(), content="first")
        assert len(await discord.wait_messages(1)) == 1
        with pytest.raises(TimeoutError, match=r"1 of 2 messages within 0.05 s: \['first'\]"):
            await discord.wait_messages(2, timeout_s=0.05)


async def test_it_runs_on_its_own_and_prints_what_it_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    command = (sys.executable, "-m", "agentrt.testing.fake_discord", "--webhook", "ops")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    name, url = (await process.stdout.readline()).decode().split()
    monkeypatch.setenv("DISCORD_WEBHOOK_OPS", url)
    notice = await discord_notify("the disk\nis full", target=name)
    process.terminate()
    shown, _ = await process.communicate()

    assert shown.decode() == f"--- ops, message {notice.message_ids[0]}\nthe disk\nis full\n"
    assert process.returncode == 0
