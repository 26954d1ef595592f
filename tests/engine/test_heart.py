"""The heart tells of a lease that is being lost, and only of one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from structlog.testing import CapturingLogger

import agentrt
from agentrt import agent
from agentrt.engine import heart
from agentrt.store.postgres import PostgresStore
from tests.conftest import supervising
from tests.support import Sql, eventually


@pytest.mark.parametrize("ends", ["succeeds", "is retried"])
async def test_a_heartbeat_that_is_refused_because_the_attempt_has_ended_is_no_loss(
    database: str, client: agentrt.Client, sql: Sql, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    log = CapturingLogger()
    monkeypatch.setattr(heart, "log", log)
    renew = PostgresStore.renew
    asked = asyncio.Event()
    answers: list[set[int]] = []
    loop = asyncio.get_running_loop()

    async def renew_after_the_end(store: PostgresStore, leases: Sequence[tuple[int, int, float]]) -> set[int]:
        """In the heart's thread: as if the statement was on its way for as long as the attempt took to end."""
        loop.call_soon_threadsafe(asked.set)

        async def ended() -> bool:
            row = await store.job(leases[0][0])
            return row is not None and row["state"] != "running"

        await eventually(ended)
        answers.append(await renew(store, leases))
        return answers[-1]

    monkeypatch.setattr(PostgresStore, "renew", renew_after_the_end)

    @agent
    async def long() -> None:
        await asked.wait()
        if ends != "succeeds":
            raise agentrt.RetryAfter(600)

    async with supervising(database, long, lease_s=30.0, heartbeat_s=0.1, poll_s=600):
        job = await long.send()
        await sql.until(job.id, "succeeded", "scheduled")

        async def answered() -> bool:
            return bool(answers)

        await eventually(answered)
    assert answers == [set()]
    assert log.calls == []
