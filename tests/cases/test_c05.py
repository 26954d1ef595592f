"""C05, wakeup: what is put into the notification hits its limit of 8000 bytes, so that big or many messages are refused."""

from __future__ import annotations

import asyncpg
import pytest

import agentrt
from agentrt import agent
from tests.conftest import supervising
from tests.support import Sql

pytestmark = pytest.mark.case
large = "ä" * 100_000  # 200 kB


@agent
async def length(text: str, n: int = 0) -> int:
    return len(text)


async def test_large_messages_and_many_at_once_are_accepted_and_started_at_once(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    await sql.run("alter table agentrt.jobs alter id restart with 9200000000000000000")  # ids of full width
    heard: list[tuple[str, str]] = []
    listening = await asyncpg.connect(database)
    for channel in ("ready", "due", "done", "cancel"):
        await listening.add_listener(
            f"agentrt.{channel}", lambda _c, _pid, channel, payload: heard.append((channel, str(payload)))
        )
    try:
        async with supervising(database, length, poll_s=600) as supervisor:
            assert await length.options(timeout_s=10).ask(large) == 100_000
            jobs = await agentrt.send_many([length.message("x", n) for n in range(3_000)])
            keyed = await agentrt.send_many(
                [length[f"k{n}" * 20].options(delay_s=0.2).message("x", n) for n in range(500)]
            )
            for job in (*jobs, *keyed):
                assert await job.result(timeout_s=60) == 1
            assert supervisor.stats.claimed["poll"] == 0
        await sql.run(
            "insert into agentrt.jobs(agent, payload)"
            " select 'length', json_build_object('text', $1::text) from generate_series(1, 50)",
            large,
        )
        async with supervising(database, length, poll_s=600):
            await sql.until_none_unfinished()
    finally:
        await listening.close()
    assert {channel for channel, _ in heard} >= {"agentrt.ready", "agentrt.done", "agentrt.due"}
    assert {len(payload) <= 20 for _, payload in heard} == {True}  # nothing, or the number of a job


async def test_a_large_result_reaches_who_waits_for_it(database: str, client: agentrt.Client) -> None:
    @agent
    async def long(n: int) -> str:
        return "ä" * n

    async with supervising(database, long, poll_s=600):
        assert await long.options(timeout_s=10).ask(100_000) == large


async def test_a_message_beyond_its_limit_is_refused_before_it_is_sent(client: agentrt.Client, sql: Sql) -> None:
    with pytest.raises(agentrt.PayloadTooLarge, match="at most 1,048,576"):
        await length.send("x" * 1_100_000)
    assert await sql.value("select count(*) from agentrt.jobs") == 0
