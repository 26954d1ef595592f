"""What many idle supervisors cost those who send: each commit that rings wakes every session that listens.

    python -m tests.bench.fleet [--supervisors 300] [--senders 1] [--seconds 5] [--database URL]

The supervisors are bare connections, which beat, stand by and listen with the store's own verbs, as the doorbell does. Prints,
as JSON lines, the commits a second of senders of single messages while nobody listens, while as many listen as the doorbell
asks for, and while all of them do. Without `--database` an embedded server is made for the run.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import orjson

from agentrt.engine.doorbell import listeners_enough
from agentrt.store.postgres import PostgresStore
from tests.crash.chaos import database

schema = "agentrt_fleet"
insert = f"insert into {schema}.jobs(agent, payload) values ('fleet', '{{}}')"


async def commits_per_s(insert: str, senders: list[asyncpg.Connection], seconds: float) -> float:
    """Each inserts one by one, a commit each; how many all of them make in a second."""
    began = time.perf_counter()

    async def send(connection: asyncpg.Connection) -> int:
        count = 0
        while time.perf_counter() - began < seconds:
            await connection.execute(insert)
            count += 1
        return count

    count = sum(await asyncio.gather(*map(send, senders)))
    return count / (time.perf_counter() - began)


async def register(store: PostgresStore, fleet: list[UUID]) -> set[UUID]:
    """Beat for each; returns those that listen because not enough did before them."""
    listens = set()
    for each in fleet:
        about: dict[str, Any] = {
            "host": "bench", "pid": 1, "agents": ["fleet"], "slots": 10, "limits": {}, "state": "running", "told": [],
            "names_max": 0,
        }  # fmt: skip
        seen = await store.beat(each, about)
        if seen.ahead < listeners_enough:
            listens.add(each)
        else:
            await store.set_quiet(each, True, standby=True)
    return listens


async def measure(dsn: str, supervisors: int, senders: int, seconds: float) -> None:
    store = PostgresStore(dsn, schema)
    await store.migrate()
    fleet = [uuid4() for _ in range(supervisors)]
    try:
        async with AsyncExitStack() as stack:

            async def connected() -> asyncpg.Connection:
                connection = await asyncpg.connect(dsn, server_settings={"synchronous_commit": "on"})
                stack.push_async_callback(connection.close)
                return connection

            sending = [await connected() for _ in range(senders)]
            sessions = {each: await connected() for each in fleet}
            enough = await register(store, fleet)
            for name, listens in [("none", set()), ("enough", enough), ("all", set(fleet))]:
                for each in listens:
                    await sessions[each].add_listener(f"{schema}.ready", lambda *_: None)
                rate = await commits_per_s(insert, sending, seconds)
                row = {"supervisors": supervisors, "senders": senders, "listen": name, "sessions": len(listens)}
                print(orjson.dumps({**row, "commits_per_s": round(rate, 1)}).decode(), flush=True)  # noqa: T201 - the result
    finally:
        await store.drop_schema()
        await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--supervisors", type=int, default=300)
    parser.add_argument("--senders", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--database", metavar="URL", help="a server that takes so many connections")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, database(given.database, Path(folder)) as dsn:
        asyncio.run(measure(dsn, given.supervisors, given.senders, given.seconds))


if __name__ == "__main__":
    main()
