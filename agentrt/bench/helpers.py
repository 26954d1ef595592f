"""`python -m agentrt.bench.helpers receive|count SCHEMA`: processes that a measurement starts and speaks with by pipes."""

from __future__ import annotations

import asyncio
import os
import sys

from agentrt.bench.agents import noop
from agentrt.cli.common import in_loop
from agentrt.config import database_url, setup_logging
from agentrt.store.opening import open_store
from agentrt.store.postgres.by_hand import receive
from agentrt.testing.inside import supervising_on


async def count(url: str, schema: str) -> None:
    """A supervisor with default settings that says on each byte of standard input how many statements it has sent."""
    store = await open_store(url, schema)
    over = asyncio.Event()
    loop = asyncio.get_running_loop()

    def say() -> None:
        sys.stdout.write(f"{store.statements}\n")
        sys.stdout.flush()

    def asked() -> None:
        if os.read(sys.stdin.fileno(), 1):
            say()
        else:
            loop.remove_reader(sys.stdin.fileno())
            over.set()

    try:
        async with supervising_on(store, noop):
            say()  # it is ready
            loop.add_reader(sys.stdin.fileno(), asked)
            await over.wait()
    finally:
        await store.close()


if __name__ == "__main__":
    work = {"receive": receive, "count": count}[sys.argv[1]]
    setup_logging("info")
    in_loop(work(database_url(), sys.argv[2]))
