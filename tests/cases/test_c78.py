"""C78, discord: the wait of a rate limit is read in the wrong unit or ignored, so the sender hammers on or sleeps for hours."""

from __future__ import annotations

import pytest

import agentrt
from agentrt.testing.fake_discord import FakeDiscord
from tests.conftest import Start
from tests.support import Sql

pytestmark = pytest.mark.case
count = 30


async def test_notices_of_two_processes_wait_as_the_body_says_and_arrive_once(
    sql: Sql, client: agentrt.Client, start: Start
) -> None:
    async with FakeDiscord(limit=5, window_s=0.5) as discord:
        discord.limit_next(1.5, header="1500", times=2)
        environ = {"DISCORD_WEBHOOK": discord.webhook()}
        programs = [start("run", "agentrt.agents", "--poll", "600", name=n, environ=environ) for n in ("one", "two")]
        for program in programs:
            await program.until("supervisor.started")
        await agentrt.send_many([agentrt.to("discord_notify").message(content=f"n{n}") for n in range(count)])
        await sql.until_none_unfinished(within_s=60)
        for program in programs:
            assert await program.stop() == 0

    assert sorted(discord.contents()) == sorted(f"n{n}" for n in range(count))
    assert discord.statuses().count(429) < 2 * count  # who hammers on gets hundreds
    ends = await sql.rows("select state, attempt from agentrt.history")
    assert [(end["state"], end["attempt"]) for end in ends] == [("succeeded", 1)] * count
    assert await sql.value("select count(*) from agentrt.attempts where reason <> 'later'") == 0
    waits = await sql.rows(_told_waits)
    assert len(waits) == 2
    # The runtime may add its own lateness on a busy machine; 1,500 s (the header) or 1.5 ms (a wrong unit) it is not.
    assert all(1.5 <= wait["wait_s"] < 20 for wait in waits), waits


_told_waits = """
with runs as (
  select job_id, text, ended_at,
         lead(claimed_at) over (partition by job_id order by fence) as again_at
    from (select job_id, fence, text, claimed_at, ended_at from agentrt.attempts
          union all select id, fence, '', claimed_at, finished_at from agentrt.history) a)
select extract(epoch from again_at - ended_at)::float8 as wait_s from runs where text like '%: 1.5 s'
"""
