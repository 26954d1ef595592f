"""C57, connection: two tasks use one connection at once, and the driver reports another operation in progress."""

from __future__ import annotations

import pytest

import agentrt
from tests.conftest import Start
from tests.support import Sql

pytestmark = pytest.mark.case
jobs_count = 500
source = """
import structlog
import agentrt
from agentrt import agent, step

log = structlog.get_logger("mine")

async def double(n: int) -> int:
    return n * 2

@agent
async def told(n: int) -> int:
    return n

@agent
async def busy(n: int) -> int:
    total = 0
    for number in range(5):
        total += await step(double, n + number)
        log.info("mine.stepped", number=number)
    await told.send(total)
    return total
"""


async def test_many_jobs_of_one_process_share_its_connections_one_statement_at_a_time(
    start: Start, client: agentrt.Client, sql: Sql
) -> None:
    worker = start("run", "agents.py", "--slots", "50", "--poll", "600", source=source)
    await worker.until("supervisor.started")
    busy = agentrt.to("busy")
    jobs = await agentrt.send_many([busy.message(n=n) for n in range(jobs_count)])
    assert [await job.result(timeout_s=60) for job in jobs] == [10 * n + 20 for n in range(jobs_count)]
    await sql.until_none_unfinished()
    assert await worker.stop() == 0

    assert await sql.value("select count(*) from agentrt.steps where kind = 'step'") == 5 * jobs_count
    assert (
        await sql.value("select count(*) from agentrt.history where state = 'succeeded' and attempt = 1")
        == 2 * jobs_count
    )
    assert len(worker.events("mine.stepped")) == 5 * jobs_count
    log = worker.log()
    for trouble in ("another operation", "InterfaceError", "Traceback", "database.lost", "loop.died"):
        assert trouble not in log
    assert not worker.events(level="error")
