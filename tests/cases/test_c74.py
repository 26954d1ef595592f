"""C74, ordering: of two messages the one with the lower number commits later, and a reader that goes by numbers never sees it."""

from __future__ import annotations

import asyncpg
import pytest

import agentrt
from agentrt import agent
from tests.conftest import supervising
from tests.support import Sql

pytestmark = pytest.mark.case
handled: list[int] = []


@agent
async def reader(n: int) -> None:
    handled.append(n)


@pytest.mark.parametrize("dedups", [False, True], ids=["plain", "with dedup"])
async def test_a_message_that_commits_after_later_ones_were_handled_is_handled_at_once(
    dedups: bool, database: str, client: agentrt.Client, sql: Sql
) -> None:
    handled.clear()
    first, second = await asyncpg.connect(database), await asyncpg.connect(database)
    try:
        async with supervising(database, reader, poll_s=600) as supervisor:
            held = first.transaction()
            await held.start()
            late = await reader.options(connection=first, dedup="late" if dedups else None).send(1)
            async with second.transaction():
                early = await reader.options(connection=second, dedup="early" if dedups else None).send(2)
            assert late.id < early.id
            await early.result(timeout_s=10)
            for n in range(3, 203):  # many claims pass the hole
                await reader.send(n)
            await sql.until_none_unfinished()
            assert 1 not in handled

            await held.commit()
            await late.result(timeout_s=10)
            assert handled[0] == 2
            assert handled[-1] == 1
            assert len(handled) == 202
            assert supervisor.stats.claimed["poll"] == 0
    finally:
        await first.close()
        await second.close()


async def test_in_one_mailbox_a_second_sender_waits_for_the_first_ones_transaction(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    """The order within a key is the order of the commits, so whoever comes second cannot commit first."""
    handled.clear()
    first, second = await asyncpg.connect(database), await asyncpg.connect(database)
    try:
        async with supervising(database, reader, poll_s=600):
            held = first.transaction()
            await held.start()
            one = await reader.options(connection=first, key="k").send(1)
            await second.execute("set lock_timeout = '300ms'")
            with pytest.raises(agentrt.StoreError, match="lock timeout"):
                await reader.options(connection=second, key="k").send(2)
            await held.commit()
            two = await reader.options(connection=second, key="k").send(2)
            await one.result(timeout_s=10)
            await two.result(timeout_s=10)
        assert handled == [1, 2]
    finally:
        await first.close()
        await second.close()
