"""What a fresh step costs, beside a fenced insert by hand: one after the other in one job, and in many jobs at once."""

from __future__ import annotations

import asyncio
import time

from agentrt.agent import agent
from agentrt.bench.report import Report, compared, per_second, ratio
from agentrt.bench.run import Run, stuck_s
from agentrt.durable.step import step
from agentrt.testing.inside import supervising_on

block = 100
steps_a_job = 20  # of the many at once


async def _nothing(number: int) -> int:
    return number


@agent
async def stepping(count: int) -> tuple[float, float]:
    """So many steps, one after the other; when it began and ended, on this machine's monotonic clock."""
    began = time.monotonic()
    for number in range(count):
        await step(_nothing, number, name="nothing")
    return began, time.monotonic()


async def steps(run: Run, *, count: int, concurrent: int, jobs: int) -> Report:
    """`count` steps of one job at a time, and `concurrent` ones of `jobs` jobs at once (both in whole rounds)."""
    async with (
        supervising_on(run.store, stepping, slots=jobs),
        run.client(),
    ):  # in this process: its statements are counted
        await _stepped(10)  # opens the connections, prepares the statements
        around = min([await _statements(run, 0) for _ in range(3)])  # what a job takes without any step
        await run.by_hand.own(max(jobs, 1))
        ours, floor, statements, done = await _one_by_one(run, count, around)
        ours_s, floor_s, at_once = await _at_once(run, concurrent, jobs)
    ms, floor_ms = (round(some / done * 1000, 4) for some in (ours, floor))
    rate, floor_rate = per_second(at_once, ours_s), per_second(at_once, floor_s)
    trips = round(statements / done, 3)
    return Report(
        f"{done:,} steps one after the other, and {at_once:,} of {jobs} jobs at once",
        {
            "steps": done,
            "ms_per_step": ms,
            "floor_ms": floor_ms,
            "ratio": ratio(ms, floor_ms),
            "round_trips_per_step": trips,
            "jobs": jobs,
            "concurrent_steps": at_once,
            "concurrent_steps_per_s": rate,
            "floor_concurrent_steps_per_s": floor_rate,
            "concurrent_ratio": ratio(rate, floor_rate),
        },
        [
            compared("ms a step", ms, floor_ms),
            compared("round trips a step", float(trips)),
            compared(f"steps a second, {jobs} jobs at once", rate, floor_rate),
        ],
    )


async def _stepped(count: int) -> tuple[float, float]:
    return await stepping.options(timeout_s=stuck_s).ask(count)


async def _statements(run: Run, count: int) -> int:
    before = run.store.statements
    await _stepped(count)
    return run.store.statements - before


async def _one_by_one(run: Run, count: int, around: int) -> tuple[float, float, int, int]:
    """Blocks of steps alternate with as many inserts. Returns the seconds of both, our statements, how many steps."""
    ours = floor = 0.0
    statements = done = 0
    while done < count:
        before = run.store.statements
        began, ended = await _stepped(block)
        statements += run.store.statements - before - around
        ours += ended - began
        began = time.monotonic()
        for number in range(done, done + block):
            await run.by_hand.record(f"nothing#{number}", str(number))
        floor += time.monotonic() - began
        done += block
        run.progress("one by one", done, count)
    return ours, floor, statements, done


async def _at_once(run: Run, count: int, jobs: int) -> tuple[float, float, int]:
    """Rounds of `jobs` jobs, alternating with as many inserts, those of a step of all jobs in one statement."""
    ours = floor = 0.0
    done = 0
    while done < count:
        spans = await asyncio.gather(*(_stepped(steps_a_job) for _ in range(jobs)))
        ours += max(ended for _, ended in spans) - min(began for began, _ in spans)
        began = time.monotonic()
        for number in range(steps_a_job):
            await run.by_hand.record_many(f"at once#{done}#{number}", [str(number)] * jobs)
        floor += time.monotonic() - began
        done += jobs * steps_a_job
        run.progress("many at once", done, count)
    return ours, floor, done
