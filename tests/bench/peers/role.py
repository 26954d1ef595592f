"""The process in a peer's own environment: says what the adapter can do, makes tables, works, or sends.

    python -m tests.bench.peers.role NAME info | copies COUNT | setup DSN | work DSN PURPOSE PROBE WORKER | send DSN JSON

Only the standard library and the adapter's.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import platform
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench.peers.adapter import Adapter, Item, Kind
from tests.bench.peers.probe import Probe, now

bulk_batch = 1000


def load(name: str) -> Adapter:
    """The adapter of a peer."""
    adapter: Adapter = importlib.import_module(f"tests.bench.peers.adapters.{name}").Peer()
    return adapter


def info(adapter: Adapter) -> dict[str, Any]:
    return {
        "settings": adapter.settings,
        "bulk": adapter.bulk,
        "steps": adapter.steps,
        "jobs_max": adapter.jobs_max,
        "unfinished": adapter.unfinished,
        "python": platform.python_version(),
    }


async def send(adapter: Adapter, dsn: str, how: dict[str, Any]) -> dict[str, Any]:
    """Enqueue as told: `mode` one, spread, bulk or paced; `kind`, `count`, `first`, `x`, `producers`, `gap_s`.

    Returns the seconds it took, connecting not counted, and for `paced` the moment before each send.
    """
    kind: Kind = how["kind"]
    items: list[Item] = [(how["first"] + number, how["x"]) for number in range(how["count"])]
    sent_at: list[float] = []
    await adapter.open(dsn, how["producers"])
    began = now()
    if how["mode"] == "bulk":
        for start in range(0, len(items), bulk_batch):
            await adapter.enqueue_many(kind, items[start : start + bulk_batch])
    elif how["mode"] == "paced":
        for number, x in items:
            await asyncio.sleep(random.uniform(0.5, 1.5) * how["gap_s"])
            sent_at.append(now())
            await adapter.enqueue(kind, number, x)
    else:
        rest = iter(items)
        await asyncio.gather(*(_one_by_one(adapter, kind, rest) for _ in range(how["producers"])))
    seconds = now() - began
    await adapter.close()
    return {"seconds": seconds, "sent_at": sent_at}


async def _one_by_one(adapter: Adapter, kind: Kind, items: Iterator[Item]) -> None:
    for number, x in items:
        await adapter.enqueue(kind, number, x)


def main(name: str, role: str, *rest: str) -> None:
    adapter = load(name)
    answer: dict[str, Any] = {}
    if role == "info":
        answer = info(adapter)
    elif role == "copies":
        answer = {"finished": adapter.finished_sql(int(rest[0])), "pending": adapter.pending_sql(int(rest[0]))}
    elif role == "setup":
        adapter.run(adapter.setup(rest[0]))
    elif role == "work":
        dsn, purpose, probe, worker = rest
        adapter.probe = Probe(Path(probe), int(worker))
        Adapter.here = adapter
        adapter.run(adapter.work(dsn, dict(adapter.settings[purpose])))
    else:
        answer = adapter.run(send(adapter, rest[0], json.loads(rest[1])))
    sys.stdout.write(f"\n{json.dumps(answer)}\n")
    sys.stdout.flush()
    os._exit(0)  # a library's threads must not keep the answer waiting


if __name__ == "__main__":
    main(*sys.argv[1:])
