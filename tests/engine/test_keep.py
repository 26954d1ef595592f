"""`--keep`: a supervisor lets finished jobs go when their keeping time has passed, and no sooner."""

from __future__ import annotations

import pytest

import agentrt
from agentrt import JobExpired, agent, step
from agentrt.config import Settings
from agentrt.engine import janitor
from agentrt.errors import ConfigError
from tests.conftest import Clock, Start, supervising
from tests.support import Sql, eventually

day_s = 86_400.0
source = """
from agentrt import agent


@agent
async def a() -> None: ...
"""


def double(x: int) -> int:
    return 2 * x


@agent
async def doubler(x: int) -> int:
    return await step(double, x)


async def test_a_finished_job_leaves_after_its_keeping_time_and_a_wait_for_it_says_expired(
    database: str, client: agentrt.Client, sql: Sql, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(janitor, "prune_first_s", 0.02)
    monkeypatch.setattr(janitor, "prune_every_s", 0.1)
    async with supervising(database, doubler, keep_s=3 * day_s):
        old = await doubler.send(2)
        assert await old.result(timeout_s=30) == 4
        await clock.advance(2.5 * day_s)
        young = await doubler.send(3)
        assert await young.result(timeout_s=30) == 6
        await clock.advance(
            1.6 * day_s
        )  # the first is 4.1 days old: a day more than it takes for all of its day to be due

        async def gone() -> bool:
            return not await sql.value("select count(*) from agentrt.steps where job_id = $1", old.id)

        await eventually(gone)
        with pytest.raises(JobExpired, match=f"Job {old.id} has expired"):
            await old.result(timeout_s=30)
        assert await young.result(timeout_s=30) == 6
        assert await sql.value("select count(*) from agentrt.steps where job_id = $1", young.id) == 1


async def test_a_process_and_its_children_take_keep_in_days(start: Start) -> None:
    program = start("run", "agents.py", "--keep", "90m", "--processes", "2", source=source)
    await program.until("supervisor.started", count=2)
    assert await program.stop() == 0
    refused = start("run", "agents.py", "--keep", "7 weeks")
    assert await refused.ended() == 2
    assert "is no length of time" in refused.log()
    refused = start("run", "agents.py", environ={"AGENTRT_KEEP": "1s"})
    assert await refused.ended() == 2
    assert "keep_s is 1" in refused.log()


def test_a_keeping_time_shorter_than_a_statement_may_take_is_refused() -> None:
    with pytest.raises(ConfigError, match="keep_s"):
        Settings(keep_s=1)
