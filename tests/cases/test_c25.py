"""C25, cancel: the row says cancelled while the job works on, or a late cancel wipes a result that is there already."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import agentrt
from tests.conftest import Start
from tests.support import Sql

pytestmark = pytest.mark.case
jobs_count = 100
at_a_time = 20
run_s = 0.6
tick = agentrt.to("tick")


async def _cancel_at_some_moment(number: int, sql: Sql, looking: asyncio.Lock) -> tuple[int, bool]:
    """Send a ticking job and cancel it: just after its claim, in mid-run, around its finish, or when it has ended."""
    job = await tick.send(seconds=run_s)
    if number % 4 == 3:
        await job.result(timeout_s=60)
    else:
        state = ""
        while state in ("", "ready"):
            await asyncio.sleep(0.005)
            async with looking:
                state = await sql.state(job.id) or ""
        low, high = [(0, 0.05), (0.1, 0.5), (run_s - 0.1, run_s + 0.1)][number % 4]
        await asyncio.sleep(random.uniform(low, high))  # the random moment of the cancel is what the case is about
    return job.id, await job.cancel()


async def test_after_cancelled_an_agent_does_nothing_and_what_is_done_stays_done(
    start: Start, client: agentrt.Client, sql: Sql
) -> None:
    worker = start("run", str(Path(__file__).parent / "ledger.py"), "--poll", "600")
    await worker.until("supervisor.started")
    room, looking = asyncio.Semaphore(at_a_time), asyncio.Lock()

    async def one(number: int) -> tuple[int, bool]:
        async with room:
            return await _cancel_at_some_moment(number, sql, looking)

    needed = dict(await asyncio.gather(*(one(number) for number in range(jobs_count))))
    await sql.until_none_unfinished()
    assert await worker.stop() == 0

    notes: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for note in worker.notes():
        notes[note["job"]].append(note)
    rows = await sql.rows(
        "select id, state, result::text as result, extract(epoch from finished_at)::float8 as at from agentrt.history"
    )
    assert sorted(row["id"] for row in rows) == sorted(needed)  # one end each
    for row in rows:
        kinds = [note["kind"] for note in notes[row["id"]]]
        assert kinds.count("start") <= 1
        assert kinds.count("end") == (row["state"] == "succeeded")
        assert row["result"] == ('"ticked"' if row["state"] == "succeeded" else None)
        assert all(note["at"] <= row["at"] for note in notes[row["id"]])
        if not needed[row["id"]]:
            assert row["state"] == "succeeded"
    assert [row["state"] for row in rows].count("succeeded") >= jobs_count // 4
    assert any(row["state"] == "cancelled" and notes[row["id"]] for row in rows), "no cancel met a running job"
