"""C29, cancel: a job that waits for its time, its retry or its dead worker's lease cannot be cancelled and comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

import agentrt
from agentrt import Retry, agent
from tests.conftest import Clock, Start, supervising
from tests.support import Sql

pytestmark = pytest.mark.case
starts: list[int] = []


@agent(retry=Retry(max_attempts=5, base_s=600, jitter=0))
async def waiting(fail: bool = False) -> None:
    starts.append(agentrt.current().job_id)
    if fail:
        raise ValueError("not yet")


@agent
async def other() -> None: ...


async def test_a_job_that_waits_is_cancelled_at_once_and_never_starts_again(
    database: str, clock: Clock, client: agentrt.Client, sql: Sql
) -> None:
    starts.clear()
    async with supervising(database, waiting, other, poll_s=600):
        delayed = await waiting.options(delay_s=600).send()
        backing_off = await waiting.options(key="k").send(fail=True)
        await sql.until(backing_off.id, "scheduled", within_s=20)
        blocked = await waiting.options(key="k").send()
        unknown = await agentrt.to("nobody knows it").send()
        assert [await job.status() for job in (delayed, blocked, unknown)] == ["scheduled", "blocked", "ready"]

        for job in (blocked, delayed, backing_off, unknown):
            assert await job.cancel("no longer needed")
            assert await job.status() is agentrt.State.cancelled  # at once, no process was asked
            assert not await job.cancel()
            with pytest.raises(agentrt.JobCancelled, match="no longer needed"):
                await job.result(timeout_s=10)

        await clock.advance(3_600)  # when each would have come back
        await other.options(delay_s=0.05, timeout_s=10).ask()  # looks for what is due
        await waiting.options(key="k", timeout_s=10).ask()  # and the mailbox moves on
    assert starts[0] == backing_off.id
    assert len(starts) == 2
    assert starts[1] not in (delayed.id, backing_off.id, blocked.id)
    assert await sql.value("select count(*) from agentrt.jobs") == 0


async def test_a_job_whose_worker_was_killed_is_cancelled_when_its_lease_ends_and_never_starts_again(
    start: Start, client: agentrt.Client, sql: Sql
) -> None:
    command = ("run", str(Path(__file__).parent / "ledger.py"), "--lease", "2", "--poll", "600")
    worker = start(*command)
    job = await agentrt.to("nap").send(seconds=600.0)
    behind = await agentrt.to("nap").options(delay_s=3600).send(seconds=600.0)
    await sql.until(job.id, "running")
    await worker.until("job.claimed")
    worker.kill()
    assert await job.cancel("its machine is gone")
    assert await behind.cancel()

    second = start(*command, name="second")
    row = await sql.until(job.id, "cancelled", within_s=20)
    assert row["last_error"] == "its machine is gone"
    await agentrt.to("instant").options(timeout_s=20).ask(n=1)
    assert not second.events("job.claimed", job_id=job.id)
    assert len([note for note in second.notes("start") if note["agent"] == "nap"]) <= 1
    assert await sql.value("select count(*) from agentrt.jobs") == 0
