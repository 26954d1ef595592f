"""C59, security: the address of a webhook (which is its credential) or a model's key shows in errors, logs and outputs.

Every trouble here echoes the secret where the service can. Its host may show, the token and the key nowhere.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping

import pytest

import agentrt
from agentrt import Agent, Retry
from agentrt.agents import discord_notify, discord_wire
from agentrt.agents.discord_notify import Notice
from agentrt.testing.fake_discord import FakeDiscord
from tests.agents import conftest
from tests.agents.fake_llm import FakeLlm, error, key, status, stream
from tests.conftest import Start, supervising
from tests.support import Sql, eventually

pytestmark = pytest.mark.case
llm = conftest.llm


async def _until_failed_once(sql: Sql, count: int) -> None:
    """Wait until an attempt of each of `count` jobs has failed: no need to sit through their backoff."""

    async def look() -> bool:
        return bool(await sql.value("select count(distinct job_id) >= $1 from agentrt.attempts", count))

    await eventually(look, what=f"failed attempts of {count} jobs")


async def _stored(sql: Sql) -> str:
    """Every row of every table and view of the runtime, as text."""
    tables = await sql.rows("select table_name as name from information_schema.tables where table_schema = 'agentrt'")
    assert {"jobs", "history", "attempts", "steps"} <= {table["name"] for table in tables}
    rows = [await sql.rows(f'select t::text as row from agentrt."{table["name"]}" t') for table in tables]
    return "\n".join(row["row"] for table in rows for row in table)


async def _shown(database: str, job_ids: list[int]) -> str:
    """What the command line tells of the jobs, on a machine that does not know the secrets and so cannot hide them."""
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("DISCORD_", "OPENAI_", "ANTHROPIC_"))
    }
    told = ""
    for job_id in job_ids:
        for words in (("show", str(job_id), "--verbose"), ("why", str(job_id))):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "agentrt", *words, "--database", database),
                env=environ,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            text = (await process.communicate())[0].decode()
            assert process.returncode == 0, text
            told += text
    return told


def _require_unseen(secrets: list[str], places: Mapping[str, str]) -> None:
    for place, text in places.items():
        assert "127.0.0.1" in text, f"{place} tells nothing of the trouble: {text[:2_000]}"
        for secret in secrets:
            assert secret not in text, f"{place} holds {secret}"


async def test_the_token_of_a_webhook_is_in_no_log_row_or_output(
    database: str, sql: Sql, client: agentrt.Client, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeDiscord() as discord:
        urls = {name: discord.webhook(name) for name in ("page", "gone", "cut", "down")}
        urls["down"] = urls["down"].replace(f":{discord.port}", ":1")
        for name, url in urls.items():
            monkeypatch.setenv(f"DISCORD_WEBHOOK_{name.upper()}", url)
        discord.fail_next(500, body=f"<p>{urls['page']}</p>", webhook="page", times=9)
        # The token alone too: only what knows the address can tell that it is one.
        echo = {"message": f"Unknown {urls['gone'].rpartition('/')[2]} of {urls['gone']}?wait=true", "code": 10015}
        discord.fail_next(404, body=echo, webhook="gone")
        discord.cut_next(stored=True, webhook="cut", times=9)
        program = start("run", "agentrt.agents", "--poll", "600", "--log-level", "debug")
        jobs = [await discord_notify.send("x", target=name) for name in urls]
        await _until_failed_once(sql, len(urls))
        shown = await _shown(database, [job.id for job in jobs])
        assert await program.stop() == 0

    assert (await sql.job(jobs[1].id))["reason"] == "fatal"
    secrets = [url.rpartition("/")[2] for url in urls.values()]
    _require_unseen(secrets, {"log": program.log(), "tables": await _stored(sql), "output": shown})


async def test_the_token_is_not_told_when_the_server_never_answers(
    database: str,
    sql: Sql,
    client: agentrt.Client,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(discord_wire, "answer_s_max", 0.2)
    once: Agent[..., Notice] = Agent(discord_notify.fn, name="discord_notify", retry=Retry(max_attempts=1))
    async with FakeDiscord() as discord, supervising(database, once, poll_s=600):
        monkeypatch.setenv("DISCORD_WEBHOOK", discord.webhook())
        discord.stall_next()
        job = await once.send("x")
        row = await sql.until(job.id, "failed", "succeeded")

    assert (row["state"], row["reason"]) == ("failed", "error")
    log = capsys.readouterr()
    secrets = [discord.webhook().rpartition("/")[2]]
    shown = await _shown(database, [job.id])
    _require_unseen(secrets, {"log": log.out + log.err, "tables": await _stored(sql), "output": shown})


async def test_the_key_of_a_model_is_in_no_log_row_or_output(
    database: str, sql: Sql, llm: FakeLlm, client: agentrt.Client, start: Start
) -> None:
    echo = f"Incorrect API key provided: {key}. Authorization: Bearer {key}"
    llm.says(error(401, message=echo), error(500, message=echo), status(502, f"<p>{echo}</p>"), stream(then="cut"))
    program = start("run", "agentrt.agents", "--poll", "600", "--log-level", "debug")
    jobs = [await agentrt.to("llm_task").send(prompt=f"Hi {n}") for n in range(4)]
    await _until_failed_once(sql, 4)
    shown = await _shown(database, [job.id for job in jobs])
    assert await program.stop() == 0

    assert any(key in headers.get("Authorization", "") for headers in llm.headers)
    assert await sql.value("select count(*) from agentrt.history where reason = 'fatal'") == 1
    _require_unseen([key], {"log": program.log(), "tables": await _stored(sql), "output": shown})
