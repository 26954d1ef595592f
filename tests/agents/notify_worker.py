"""A process of its own that posts notices: `-m tests.agents.notify_worker NAME COUNT`; prints its waits and failures as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from functools import partial

from agentrt.agents import discord_notify
from tests.agents.job import Job


async def main(name: str, count: int) -> None:
    jobs = [Job(partial(discord_notify, f"{name}-{number}")) for number in range(count)]
    await asyncio.gather(*(job.finish() for job in jobs))
    print(json.dumps([sorted(w for job in jobs for w in job.waits), sum(len(job.failures) for job in jobs)]))  # noqa: T201


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
