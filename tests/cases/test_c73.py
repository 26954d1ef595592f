"""C73, ordering: jobs of one transaction have one timestamp, and without a tie-breaker they run in odd order."""

from __future__ import annotations

import random

import asyncpg
import pytest

import agentrt
from agentrt import agent
from tests.conftest import supervising
from tests.support import Sql

pytestmark = pytest.mark.case
jobs_count = 300


async def run_all(database: str, sql: Sql) -> list[int]:
    """The order in which one worker with one slot runs what is there."""
    order: list[int] = []

    @agent
    async def numbered(n: int) -> None:
        order.append(n)

    async with supervising(database, numbered, slots=1, poll_s=600):
        await sql.until_none_unfinished(60)
    return order


@pytest.mark.parametrize("dedup", [False, True], ids=["plain", "with dedup"])
@pytest.mark.parametrize("mixed", [False, True], ids=["one priority", "mixed priorities"])
async def test_jobs_of_one_transaction_run_in_the_order_of_their_insertion_within_each_priority(
    mixed: bool, dedup: bool, database: str, client: agentrt.Client, sql: Sql
) -> None:
    priorities = [random.randint(0, 9) if mixed else 5 for _ in range(jobs_count)]
    to = agentrt.to("numbered")
    messages = [
        to.options(priority=priority, dedup=f"d{n % 7}-{n}" if dedup else None).message(n=n)
        for n, priority in enumerate(priorities)
    ]
    connection = await asyncpg.connect(database)
    async with connection.transaction():
        await agentrt.send_many(messages, connection=connection)
    await connection.close()
    assert await run_all(database, sql) == sorted(range(jobs_count), key=lambda n: (priorities[n], n))


async def test_jobs_of_one_plain_sql_statement_run_in_the_order_of_their_insertion(database: str, sql: Sql) -> None:
    await sql.run(
        "insert into agentrt.jobs(agent, payload, run_after, created_at)"
        " select 'numbered', json_build_object('n', n), now(), now() from generate_series(0, $1 - 1) n",
        jobs_count,
    )
    assert await run_all(database, sql) == list(range(jobs_count))
