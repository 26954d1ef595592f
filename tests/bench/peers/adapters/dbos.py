"""DBOS: durable workflows; a job is one, in a queue that is polled. The open library alone, without its Conductor."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from dbos import DBOS, DBOSClient

from tests.bench.peers.adapter import Adapter, Kind, Settings, connections, copies


@DBOS.workflow(name="noop")
async def noop(number: int, x: float) -> None:
    await Adapter.here.handle("noop", number, x)


@DBOS.workflow(name="sleep")
async def sleep(number: int, x: float) -> None:
    await Adapter.here.handle("sleep", number, x)


@DBOS.workflow(name="ping")
async def ping(number: int, x: float) -> None:
    await Adapter.here.handle("ping", number, x)


@DBOS.step(name="one")
async def one(slot: int) -> int:
    return await Adapter.here.step(slot)


@DBOS.workflow(name="steps")
async def steps(number: int, x: float) -> None:
    for slot in range(number * int(x), (number + 1) * int(x)):
        await one(slot)


def _address(dsn: str) -> str:
    return dsn.replace("postgresql://", "postgresql+psycopg://")


class Peer(Adapter):
    """Without a limit a worker takes all that is pending at once, which with a long backlog takes minutes."""

    settings: ClassVar = {
        "default": {},
        "latency": {"polling_interval_sec": 0.01},
        "backlog": {"polling_interval_sec": 0.1, "worker_concurrency": 100},
    }
    bulk = False
    steps = True
    jobs_max = 2_000
    unfinished = (
        "select count(*) from dbos.workflow_status where queue_name = 'q' and status in ('ENQUEUED', 'PENDING')"
    )

    def _launch(self, dsn: str, executor: str) -> None:
        config = {
            "name": "bench",
            "system_database_url": _address(dsn),
            "application_version": "v1",
            "executor_id": executor,
            "log_level": "ERROR",
        }
        DBOS(config=config)
        DBOS.launch()

    async def setup(self, dsn: str) -> None:
        self._launch(dsn, "setup")
        DBOS.destroy()

    async def open(self, dsn: str, producers: int) -> None:
        self._client = DBOSClient(system_database_url=_address(dsn), system_database_pool_size=connections)

    async def close(self) -> None:
        self._client.destroy()

    async def enqueue(self, kind: Kind, number: int, x: float) -> None:
        if kind == "ping" and hasattr(Adapter, "here"):
            await DBOS.enqueue_workflow_async("q", ping, number, x)
        else:
            await self._client.enqueue_async({"queue_name": "q", "workflow_name": kind}, number, x)

    async def work(self, dsn: str, settings: Settings) -> None:
        self._launch(dsn, f"worker-{self.probe.worker}")
        # Registered here and not at setup: a later change of the interval is only approached by 10 % a poll.
        await DBOS.register_queue_async("q", on_conflict="always_update", **settings)
        await asyncio.Event().wait()

    def finished_sql(self, count: int) -> str:
        return self._copies(count, "SUCCESS")

    def pending_sql(self, count: int) -> str:
        return self._copies(count, "ENQUEUED")

    def _copies(self, count: int, status: str) -> str:
        """Rows with the inputs in a table beside them."""
        moment = f"s.created_at - {count} + g"  # milliseconds
        rows = copies(
            "dbos.workflow_status",
            count,
            f"status = '{status}'",
            workflow_uuid="'copy-' || s.status || g",
            created_at=moment,
        )
        inputs = copies(
            "dbos.workflow_input",
            count,
            f"workflow_uuid = (select workflow_uuid from dbos.workflow_status where status = '{status}'"
            f" and workflow_uuid not like 'copy-%' limit 1)",
            workflow_uuid=f"'copy-{status}' || g",
        )
        return f"{rows};\n{inputs}"
