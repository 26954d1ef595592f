"""Many jobs that wait in the memory of one supervisor: what they cost, and that a burst of answers, with a kill -9 in its middle,
reaches each of them once.

    python -m tests.crash.parked --jobs 10000

Each job asks another agent that nobody runs at first. When all wait, memory and processor time of the idle supervisor are
measured. Then a second process answers all in one burst, and the first is killed half-way and replaced. Exit code 1: a job
is lost, or has another result than it should.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import psutil

from tests.crash.chaos import database, say
from tests.support import Program, Sql, eventually

stuck_s = 300.0
idle_s = 10.0
asking = """
import agentrt
from agentrt import Retry, agent

@agent(retry=Retry(max_attempts=50, base_s=0.05))
async def asker(n: int) -> int:
    return n + await agentrt.to("answerer").ask(n=n)
"""
answering = """
from agentrt import agent

@agent
async def answerer(n: int) -> int:
    return n
"""
fill = "insert into agentrt.jobs(agent, payload) select 'asker', json_build_object('n', n) from generate_series(1, $1::int) n"


@dataclass(frozen=True, slots=True)
class Measured:
    """What was seen; bytes, seconds, and jobs."""

    jobs: int
    bytes_a_job: float
    idle_cpu: float  # of one core
    parking_s: float
    burst_s: float
    killed_at: int  # jobs that had ended when the supervisor was killed
    wrong: int


class _Processes:
    def __init__(self, dsn: str, folder: Path) -> None:
        self._environ = {"AGENTRT_DATABASE_URL": dsn}
        self._folder = folder
        self._all: list[Program] = []

    def start(self, name: str, source: str) -> Program:
        (self._folder / f"{name}.py").write_text(source)
        options = ["--log-level", "warning", "--poll", "600"]
        program = Program(["run", f"{name}.py", *options], self._folder, self._environ, name)
        self._all.append(program)
        return program

    def end(self) -> None:
        for program in self._all:
            program.kill()


async def run(dsn: str, folder: Path, jobs: int, progress: Callable[[str], None]) -> Measured:
    connection = await asyncpg.connect(dsn)
    sql = Sql(connection)
    processes = _Processes(dsn, folder)
    try:
        waiting = processes.start("asking", asking)

        async def up() -> bool:
            return bool(await sql.value("select to_regclass('agentrt.supervisors')")) and bool(
                await sql.value("select count(*) from agentrt.supervisors where beat_at is not null")
            )

        await eventually(up, what="the supervisor's row")
        process = psutil.Process(waiting.pid)
        before = process.memory_info().rss
        began = time.monotonic()
        await sql.run(fill, jobs)

        async def all_wait() -> bool:
            count = await sql.value("select count(*) from agentrt.steps where not done")
            progress(f"{count} of {jobs} wait")
            return bool(count == jobs)

        await eventually(all_wait, within_s=stuck_s, what="all wait")
        parking_s = time.monotonic() - began
        bytes_a_job = (process.memory_info().rss - before) / jobs
        used = sum(process.cpu_times()[:2])
        await asyncio.sleep(idle_s)  # the measured window: a rate has no event to wait for
        idle_cpu = (sum(process.cpu_times()[:2]) - used) / idle_s
        began = time.monotonic()
        processes.start("answering", answering)

        async def half() -> int:
            count = await sql.value("select count(*) from agentrt.history where agent = 'asker'")
            progress(f"{count} of {jobs} ended")
            return int(count) if count >= jobs / 2 else 0

        killed_at = await eventually(half, within_s=stuck_s, what="half of them ended")
        waiting.kill()
        processes.start("asking", asking)
        await sql.until_none_unfinished(within_s=stuck_s)
        burst_s = time.monotonic() - began
        wrong = await sql.value(
            "select count(*) from agentrt.history where agent = 'asker'"
            " and (state <> 'succeeded' or (result::text)::int <> 2 * (payload->>'n')::int)"
        )
        ended = await sql.value("select count(distinct id) from agentrt.history where agent = 'asker'")
        answers = await sql.value("select count(*) from agentrt.history where agent = 'answerer'")
        wrong += abs(jobs - ended) + abs(jobs - answers)
        return Measured(jobs, bytes_a_job, idle_cpu, parking_s, burst_s, killed_at, wrong)
    finally:
        processes.end()
        await connection.close()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.crash.parked", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--database", help="postgresql://… of an empty database; a server of its own when not given")
    given = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="agentrt-parked-"))

    def progress(text: str) -> None:
        if sys.stdout.isatty():
            sys.stdout.write(f"\r{text}\033[K")
            sys.stdout.flush()

    with database(given.database, folder) as dsn:
        seen = asyncio.run(run(dsn, folder, given.jobs, progress))
    say(
        f"{seen.jobs} jobs wait after {seen.parking_s:.1f} s: {seen.bytes_a_job / 1000:.1f} kB each,"
        f" {seen.idle_cpu * 100:.1f} % of a core while idle; all answered in {seen.burst_s:.1f} s,"
        f" killed after {seen.killed_at}; {seen.wrong} lost or wrong"
    )
    return 1 if seen.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
