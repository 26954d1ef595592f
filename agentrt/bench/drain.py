"""How fast a supervisor works off jobs that do nothing, beside claims and completions by hand in batches."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from agentrt.agent import send_many
from agentrt.bench.agents import noop
from agentrt.bench.processes import workers
from agentrt.bench.report import Figure, Report, compared, per_second, ratio
from agentrt.bench.run import MeasurementFailed, Run, seconds
from agentrt.client import Client
from agentrt.testing.inside import supervising_on

batch = 100  # of the floor
counted_max = 2_000  # jobs whose statements are counted
_send_max = 500
_insert_max = 1_000


@dataclass(frozen=True, slots=True)
class _Cost:
    """What jobs took: seconds, processor time of the supervisor processes, bytes of log, statements. None: not to be seen."""

    seconds: float
    wal_bytes: int | None
    cpu_s: float | None = None
    statements: int | None = None


async def drain(run: Run, *, jobs: int, processes: int, slots: int, log_level: str) -> Report:
    """Jobs a second from the first start to the last end; by hand half of them before and half of them after that."""
    before = await _by_hand(run, jobs // 2, "by hand, first half")
    ours = await _by_supervisor(run, jobs, ("--slots", str(slots), "--log-level", log_level), processes)
    after = await _by_hand(run, jobs - jobs // 2, "by hand, second half")
    counted = min(jobs, counted_max)
    statements = _each(await _statements(run, counted, slots), counted, 3)
    floor_statements = _each(_sum(before.statements, after.statements), jobs, 3)
    rate, floor_rate = per_second(jobs, ours.seconds), per_second(jobs, before.seconds + after.seconds)
    cpu_us = None if ours.cpu_s is None else round(ours.cpu_s / jobs * 1e6, 1)
    wal, floor_wal = _each(ours.wal_bytes, jobs), _each(_sum(before.wal_bytes, after.wal_bytes), jobs)
    return Report(
        f"{jobs:,} jobs that do nothing, {processes} supervisor process{'es' * (processes > 1)} of {slots} slots",
        {
            "jobs": jobs,
            "processes": processes,
            "per_s": rate,
            "floor_per_s": floor_rate,
            "ratio": ratio(rate, floor_rate),
            "cpu_us_per_job": cpu_us,
            "statements_per_job": statements,
            "floor_statements_per_job": floor_statements,
            "wal_bytes_per_job": wal,
            "floor_wal_bytes_per_job": floor_wal,
        },
        [
            compared("jobs a second", rate, floor_rate),
            compared("processor time a job, µs", cpu_us),
            compared("statements a job", statements, floor_statements),
            compared("bytes of log (WAL) a job", wal, floor_wal),
        ],
        remarks=(
            f"The supervisors log at level {log_level}. 'agentrt run' as it comes says info, which writes two lines a job.",
            f"Statements are those of {counted:,} more jobs, counted in a supervisor inside this process.",
            "The bytes of log are the whole server's meanwhile.",
        ),
    )


async def _by_hand(run: Run, jobs: int, what: str) -> _Cost:
    """So many jobs, which are there before the first is claimed."""
    for start in range(0, jobs, _insert_max):
        part = range(start, min(start + _insert_max, jobs))
        await run.by_hand.insert_many([f'{{"n": {number}}}' for number in part])
    run.progress(what, 0, jobs)
    sent, wal = run.by_hand.statements, await run.looks.wal_bytes()
    took_s = await seconds(run.by_hand.drain(batch))
    run.progress(what, jobs, jobs)
    return _Cost(took_s, _since(wal, await run.looks.wal_bytes()), statements=run.by_hand.statements - sent)


async def _by_supervisor(run: Run, jobs: int, options: tuple[str, ...], processes: int) -> _Cost:
    """So many jobs, committed all at once when the supervisor is ready, so that none of it is what a start costs."""
    async with AsyncExitStack() as stack:
        async with run.by_hand.transaction() as connection:
            await _preload(run, Client(run.store), connection, jobs)
            started = await stack.enter_async_context(workers(run, *options, processes=processes))
            cpu, wal = started.cpu_s(), await run.looks.wal_bytes()
        await run.drained("by the supervisor", jobs, started.require_alive)
        spent, written = started.cpu_s(), await run.looks.wal_bytes()
    ended = await run.looks.ended()
    if ended.succeeded != jobs:
        raise MeasurementFailed(f"Of {jobs} jobs {ended.jobs} ended, {ended.succeeded} of them well.")
    return _Cost(ended.seconds, _since(wal, written), None if cpu is None or spent is None else spent - cpu)


async def _preload(run: Run, client: Client, connection: Any, jobs: int) -> None:
    for start in range(0, jobs, _send_max):
        part = range(start, min(start + _send_max, jobs))
        await send_many([noop.message(number) for number in part], client=client, connection=connection)
        run.progress("sending", part.stop, jobs)


async def _statements(run: Run, jobs: int, slots: int) -> int:
    async with supervising_on(run.store, noop, slots=slots) as supervisor:
        before = run.store.statements
        async with run.by_hand.transaction() as connection:
            await _preload(run, supervisor.client, connection, jobs)
        await run.drained("counting statements", jobs)
        return run.store.statements - before


def _since(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _each(total: int | None, jobs: int, digits: int = 1) -> Figure:
    return None if total is None else round(total / jobs, digits)
