"""What messages between agents cost: jobs that each send one more, beside jobs that send nothing, in one process.

    python -m tests.bench.pipeline [--jobs 4000] [--repeats 3] [--database URL]

Prints a JSON line for each: jobs a second (in a pipeline, those of both its agents), the statements of a job and its processor
time. Without `--database` an embedded server is made for the run.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import uvloop

import agentrt
from agentrt import agent
from agentrt.agent import Agent
from agentrt.config import Settings, setup_logging
from agentrt.engine.supervisor import Supervisor
from agentrt.store.postgres import PostgresStore
from tests.crash.chaos import database

schema = "agentrt_pipeline"


@agent
async def alone(number: int) -> None: ...


@agent
async def second(number: int) -> None: ...


@agent
async def first(number: int) -> None:
    await second.send(number)


@agent
async def to_mailboxes(number: int) -> None:
    await second[f"{number % 100}"].send(number)


@agent
async def asking(number: int) -> None:
    await second.ask(number)


pipelines: dict[str, dict[str, Agent[..., Any]]] = {
    "alone": {"alone": alone},
    "first": {"first": first, "second": second},
    "first, its messages for another process": {"first": first},
    "to a hundred mailboxes": {"to_mailboxes": to_mailboxes, "second": second},
    "asking": {"asking": asking, "second": second},
}


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def run(dsn: str, name: str, agents: Mapping[str, Agent[..., Any]], count: int) -> None:
    store = PostgresStore(dsn, schema)
    await store.migrate()
    try:
        async with agentrt.connect(dsn, schema=schema):
            entry = next(iter(agents.values()))
            await agentrt.send_many([entry.message(number) for number in range(count)])
        supervisor = Supervisor(agents, store, Settings())
        total = count * len(agents)
        statements, cpu, began = store.statements, cpu_s(), time.perf_counter()
        task = asyncio.create_task(supervisor.run())
        while supervisor.stats.outcomes["succeeded"] < total:  # noqa: ASYNC110 - the loop that is measured tells nobody
            await asyncio.sleep(0.01)
        took_s = time.perf_counter() - began
        row = {"jobs": name, "jobs_per_s": round(total / took_s), "cpu_us": round((cpu_s() - cpu) / total * 1e6, 1)}
        row["statements"] = round((store.statements - statements) / total, 3)
        print(orjson.dumps(row).decode(), flush=True)  # noqa: T201 - the result
        supervisor.drain()
        await task
    finally:
        await store.drop_schema()
        await store.close()


async def measure(dsn: str, count: int, repeats: int) -> None:
    setup_logging("warning")
    for _ in range(repeats):
        for name, agents in pipelines.items():
            await run(dsn, name, agents, count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=4_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--database", metavar="URL")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, database(given.database, Path(folder)) as dsn:
        uvloop.run(measure(dsn, given.jobs, given.repeats))


if __name__ == "__main__":
    main()
