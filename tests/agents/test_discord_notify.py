"""The agent that posts to Discord, against a Discord on loopback: what arrives, and how each trouble ends."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import CapturingLogger

from agentrt import Fail, RetryAfter
from agentrt.agents import discord_notify, discord_wire
from agentrt.agents.discord_webhook import find_webhook
from agentrt.agents.discord_wire import DiscordUnavailable
from agentrt.testing.fake_discord import FakeDiscord
from tests.agents.job import Job, everything


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> CapturingLogger:
    logger = CapturingLogger()
    monkeypatch.setattr(discord_wire, "_log", logger)
    return logger


@pytest.fixture
async def discord(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeDiscord]:
    async with FakeDiscord(limit=50) as server:
        monkeypatch.setenv("DISCORD_WEBHOOK", server.webhook())
        monkeypatch.setenv("DISCORD_WEBHOOK_OPS", server.webhook("ops"))
        yield server


def token_of(url: str) -> str:
    return url.rpartition("/")[2]


async def test_a_notice_arrives_with_mentions_off_and_its_id_is_returned(discord: FakeDiscord) -> None:
    notice = await discord_notify("@everyone <@1> <@&2>: the disk is full", target="ops")

    (post,) = discord.messages
    assert notice.message_ids == [post.id]
    assert post.body == {"content": "@everyone <@1> <@&2>: the disk is full", "allowed_mentions": {"parse": []}}
    (request,) = discord.requests
    assert request.path.endswith("?wait=true")
    # "$url, $versionNumber": https://docs.discord.com/developers/reference#user-agent
    assert re.fullmatch(r"DiscordBot \(https://agentrt\.example, \d[\w.]*\)", request.headers["User-Agent"])


async def test_mentions_name_and_silence_are_as_asked_for(discord: FakeDiscord) -> None:
    await discord_notify("@here", username="night watch", silent=True, allowed_mentions=["everyone"])

    (post,) = discord.messages
    assert post.body["allowed_mentions"] == {"parse": ["everyone"]}
    assert (post.body["username"], post.body["flags"]) == ("night watch", 4096)


async def test_every_part_of_a_long_text_keeps_mentions_off(discord: FakeDiscord) -> None:
    await discord_notify("@everyone " * 900)

    assert len(discord.messages) == 5
    assert {json.dumps(post.body["allowed_mentions"]) for post in discord.messages} == {'{"parse": []}'}


@pytest.mark.parametrize(
    "text", ["x" * 1_999, "x" * 2_000, "x" * 2_001, "🦦" * 2_001, "```py\n" + "x = 1\n" * 1_500 + "```"]
)
async def test_a_text_of_any_length_arrives_whole_in_order_and_without_a_400(discord: FakeDiscord, text: str) -> None:
    notice = await discord_notify(text)

    assert set(discord.statuses()) == {200}
    assert notice.message_ids == [post.id for post in discord.messages]
    arrived = "".join(discord.contents()).replace("```py\n", "").replace("\n", "").replace("```", "")
    assert arrived == text.replace("```py\n", "").replace("\n", "").replace("```", "")


async def test_a_text_of_too_many_parts_arrives_as_a_file(discord: FakeDiscord) -> None:
    text = "a line of a long report 🦦\n" * 2_000
    notice = await discord_notify(text)

    (post,) = discord.messages
    assert notice.attached
    assert post.files == {"message.txt": text.encode()}
    assert post.body["allowed_mentions"] == {"parse": []}
    assert "is attached" in post.content


@pytest.mark.parametrize("text", ["", " \n\t ", "\u200b", "\u2060\ufeff\n"])
async def test_a_blank_text_fails_for_good_and_makes_no_request(discord: FakeDiscord, text: str) -> None:
    with pytest.raises(Fail, match="blank"):
        await discord_notify(text)
    assert discord.requests == []


@pytest.mark.parametrize(
    ("target", "variable"), [("nightly", "DISCORD_WEBHOOK_NIGHTLY"), ("#build-farm", "DISCORD_WEBHOOK_BUILD_FARM")]
)
async def test_an_unknown_target_fails_with_the_variable_to_set(target: str, variable: str) -> None:
    with pytest.raises(Fail, match=rf"Set {variable} to"):
        await discord_notify("x", target=target)


async def test_an_address_in_the_wrong_place_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISCORD_WEBHOOK_OPS", "discord.com/api/webhooks/1/s3cr3t-token")
    with pytest.raises(Fail, match="DISCORD_WEBHOOK_OPS holds no webhook address") as caught:
        await discord_notify("x", target="ops")
    assert "s3cr3t-token" not in everything(caught.value, but_of=__file__)
    with pytest.raises(Fail, match="The target is no name"):
        await discord_notify("x", target="https://discord.com/api/webhooks/1/s3cr3t-token")


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("https://discord.com/api/webhooks/1/t", "https://discord.com/api/v10/webhooks/1/t?wait=true"),
        ("https://ptb.discord.com/api/webhooks/1/t/", "https://ptb.discord.com/api/v10/webhooks/1/t/?wait=true"),
        ("https://discord.com/api/v9/webhooks/1/t", "https://discord.com/api/v9/webhooks/1/t?wait=true"),
        (
            "https://discord.com/api/webhooks/1/t?thread_id=7",
            "https://discord.com/api/v10/webhooks/1/t?thread_id=7&wait=true",
        ),
        ("http://proxy:3000/api/webhooks/1/t", "http://proxy:3000/api/webhooks/1/t?wait=true"),
    ],
)
def test_discord_is_asked_in_a_version_that_tells_waits_in_seconds(
    monkeypatch: pytest.MonkeyPatch, given: str, asked: str
) -> None:
    monkeypatch.setenv("DISCORD_WEBHOOK_OPS", given)
    assert find_webhook("ops").url == asked


async def test_a_rate_limit_reschedules_by_the_body_and_not_by_the_header(discord: FakeDiscord) -> None:
    discord.limit_next(1.5, header="1500", webhook="ops")
    with pytest.raises(RetryAfter) as caught:
        await discord_notify("x", target="ops")
    assert 1.5 <= caught.value.seconds <= 5


async def test_a_known_limit_holds_back_its_own_target_only(discord: FakeDiscord) -> None:
    discord.limit_next(60, header="60", webhook="ops")
    for _ in range(3):
        with pytest.raises(RetryAfter):
            await discord_notify("x", target="ops")
    await discord_notify("y")

    assert discord.statuses() == [429, 200]


async def test_a_global_limit_holds_back_every_target(discord: FakeDiscord) -> None:
    discord.limit_next(60, header="60", is_global=True)
    for target in ("ops", "default"):
        with pytest.raises(RetryAfter):
            await discord_notify("x", target=target)
    assert discord.statuses() == [429]


async def test_a_ban_by_the_edge_waits_ten_minutes_for_every_target(discord: FakeDiscord) -> None:
    discord.ban_next()
    for target in ("ops", "default"):
        with pytest.raises(RetryAfter) as caught:
            await discord_notify("x", target=target)
        assert caught.value.seconds >= 570
    assert discord.statuses() == [429]


async def test_the_next_part_waits_for_the_reset_instead_of_running_into_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with FakeDiscord(limit=2, window_s=1.5) as discord:
        monkeypatch.setenv("DISCORD_WEBHOOK", discord.webhook())
        job = Job(lambda: discord_notify("word " * 2_000))
        await job.finish()

    assert discord.statuses() == [200] * 5
    assert len(job.waits) >= 2
    assert job.failures == []


async def test_thirty_notices_of_four_processes_arrive_once_each_with_few_429s(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeDiscord(limit=5, window_s=0.5) as discord:
        environment = {**os.environ, "DISCORD_WEBHOOK": discord.webhook()}
        async with asyncio.TaskGroup() as group:
            runs = [group.create_task(_run(f"p{n}", str(count), environment)) for n, count in enumerate((8, 8, 7, 7))]

    assert sorted(discord.contents()) == sorted(
        f"p{n}-{i}" for n, count in enumerate((8, 8, 7, 7)) for i in range(count)
    )
    assert discord.statuses().count(429) < 60  # who hammers on gets hundreds
    for run in runs:
        waits, failures = json.loads(run.result())
        assert failures == 0
        assert all(wait <= 5 for wait in waits)


async def _run(name: str, count: str, environment: dict[str, str]) -> bytes:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.agents.notify_worker", name, count),
        env=environment,
        cwd=Path(__file__).parents[2],
        stdout=asyncio.subprocess.PIPE,
    )
    return (await process.communicate())[0]


@pytest.mark.parametrize(("status", "code"), [(404, 10015), (401, 50027), (403, 50013)])
async def test_a_dead_webhook_fails_for_good_is_not_asked_again_and_blocks_no_other(
    discord: FakeDiscord, status: int, code: int
) -> None:
    discord.fail_next(status, body={"message": "Unknown Webhook", "code": code}, webhook="ops")
    for _ in range(2):
        with pytest.raises(Fail, match=rf"{status}, code {code}, Unknown Webhook.*set DISCORD_WEBHOOK_OPS"):
            await discord_notify("x", target="ops")
    await discord_notify("y")

    assert discord.statuses() == [status, 200]


async def test_a_deleted_webhook_and_a_wrong_token_are_told_by_discord_s_own_codes(
    discord: FakeDiscord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISCORD_WEBHOOK_OPS", discord.webhook("ops") + "x")
    with pytest.raises(Fail, match="401, code 50027"):
        await discord_notify("x", target="ops")
    monkeypatch.setenv("DISCORD_WEBHOOK_OPS", discord.webhook("ops"))
    discord.delete("ops")
    with pytest.raises(Fail, match="404, code 10015"):
        await discord_notify("x", target="ops")


async def test_a_refused_message_fails_with_the_path_of_discord_s_error(discord: FakeDiscord) -> None:
    with pytest.raises(Fail, match=r"400, code 50035, .*username: Username cannot contain .clyde. \(USERNAME_INVALID"):
        await discord_notify("x", username="Clyde")


async def test_a_server_error_fails_the_attempt_and_the_retry_goes_on_with_the_failed_part(
    discord: FakeDiscord,
) -> None:
    job = Job(lambda: discord_notify("word " * 1_000))
    discord.on_post = lambda post: discord.fail_next(500) if len(discord.messages) == 1 else None
    notice = await job.finish()

    assert discord.statuses() == [200, 500, 200, 200]
    assert notice.message_ids == [post.id for post in discord.messages]
    assert [type(error) for error in job.failures] == [DiscordUnavailable]


@pytest.mark.parametrize(("stored", "copies"), [(False, 1), (True, 2)])
async def test_a_lost_answer_is_sent_again_and_said_in_the_log(
    discord: FakeDiscord, log: CapturingLogger, stored: bool, copies: int
) -> None:
    discord.cut_next(stored=stored)
    job = Job(lambda: discord_notify("x"))
    await job.finish()

    assert discord.contents() == ["x"] * copies
    assert "at least once" in str(job.failures[0])
    assert [call.args for call in log.calls] == [("discord.maybe_sent",)]


async def test_a_server_that_never_answers_fails_the_attempt(
    discord: FakeDiscord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discord_wire, "answer_s_max", 0.2)
    discord.stall_next()
    with pytest.raises(DiscordUnavailable, match="gave no answer"):
        await discord_notify("x")


async def test_without_a_server_nothing_is_said_to_have_been_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeDiscord() as discord:
        monkeypatch.setenv("DISCORD_WEBHOOK", discord.webhook())
    with pytest.raises(DiscordUnavailable, match="Nothing was sent"):
        await discord_notify("x")


async def test_a_confirmation_without_a_message_is_no_confirmation(discord: FakeDiscord) -> None:
    discord.fail_next(200, body="<html>welcome to the guest network</html>")
    with pytest.raises(DiscordUnavailable, match="answered 200 without the message"):
        await discord_notify("x")


async def test_a_redirect_is_not_followed(discord: FakeDiscord) -> None:
    discord.fail_next(301, headers={"Location": discord.webhook("ops")})
    with pytest.raises(Fail, match=r"redirect \(301\). Set DISCORD_WEBHOOK"):
        await discord_notify("x")
    assert discord.messages == []


@pytest.mark.parametrize("trouble", ["500", "404", "429", "400", "cut", "stall", "down", "page"])
async def test_the_token_of_a_webhook_is_in_no_error_log_or_traceback(
    discord: FakeDiscord,
    monkeypatch: pytest.MonkeyPatch,
    log: CapturingLogger,
    caplog: pytest.LogCaptureFixture,
    trouble: str,
) -> None:
    caplog.set_level(0)
    monkeypatch.setattr(discord_wire, "answer_s_max", 0.2)
    url = discord.webhook("ops")
    echo: dict[str, object] = {
        "message": f"{url}?wait=true: no",
        "code": 1,
        "errors": {"_errors": [{"code": "X", "message": url}]},
    }
    if trouble == "cut":
        discord.cut_next(stored=True)
    elif trouble == "stall":
        discord.stall_next()
    elif trouble == "down":
        monkeypatch.setenv("DISCORD_WEBHOOK_OPS", url.replace(str(discord.port), "1"))
    else:
        page = trouble == "page"
        discord.fail_next(500 if page else int(trouble), body=f"<p>{url}</p>" if page else echo)

    with pytest.raises((Fail, RetryAfter, DiscordUnavailable)) as caught:
        await discord_notify("x", target="ops")

    seen = str(caught.value) + everything(caught.value, but_of=__file__) + str(log.calls) + caplog.text
    assert token_of(url) not in seen
    assert "127.0.0.1" in seen
