"""absurd: its state machine is in the database; workers poll, and start no batch before the last one has ended."""

from __future__ import annotations

from typing import Any, ClassVar

import psycopg
from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL

from tests.bench.peers.adapter import Adapter, Kind, Settings, connections, copies, handled


class Peer(Adapter):
    settings: ClassVar = {
        "default": {},
        "throughput": {"concurrency": 200},
        "latency": {"concurrency": 10, "poll_interval": 0.01},
        "crash": {"concurrency": 50},
    }
    bulk = False
    steps = True
    jobs_max = 4_000
    unfinished = "select count(*) from absurd.t_q where state not in ('completed', 'failed', 'cancelled')"

    async def setup(self, dsn: str) -> None:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            await connection.execute(BUNDLED_SCHEMA_SQL)
        app = AsyncAbsurd(dsn, queue_name="q")
        await app.create_queue("q")
        await app.close()

    async def open(self, dsn: str, producers: int) -> None:
        """It has no pool: a connection for each of so many senders."""
        self._senders = [AsyncAbsurd(dsn, queue_name="q") for _ in range(1 if producers == 1 else connections)]
        self._sent = 0

    async def close(self) -> None:
        for sender in self._senders:
            await sender.close()

    async def enqueue(self, kind: Kind, number: int, x: float) -> None:
        self._sent += 1
        sender = self._senders[self._sent % len(self._senders)]
        await sender.spawn(kind, {"number": number, "x": x}, queue="q")

    async def work(self, dsn: str, settings: Settings) -> None:
        await self.open(dsn, 1)
        (app,) = self._senders
        for kind in handled:
            self._register(app, kind)

        @app.register_task("steps")
        async def steps(payload: Any, context: Any) -> None:
            number, count = payload["number"], payload["x"]
            for slot in range(number * count, (number + 1) * count):
                await context.step(f"one-{slot}", lambda slot=slot: self.step(slot))

        await app.start_worker(**settings)

    def _register(self, app: AsyncAbsurd, kind: Kind) -> None:
        @app.register_task(kind)
        async def run(payload: Any, context: Any) -> None:
            await self.handle(kind, payload["number"], payload["x"])

    def finished_sql(self, count: int) -> str:
        tasks = copies("absurd.t_q", count, "state = 'completed'", task_id="absurd.portable_uuidv7()")
        runs = copies("absurd.r_q", count, "state = 'completed'", run_id="absurd.portable_uuidv7()")
        return f"{tasks};\n{runs}"

    def pending_sql(self, count: int) -> str:
        """A task and its first run name each other."""
        return f"""
            with pair as materialized (
              select absurd.portable_uuidv7() as task, absurd.portable_uuidv7() as run,
                     ({count} - g) * interval '1 millisecond' as ago
                from generate_series(1, {count}) g),
            tasks as (
              insert into absurd.t_q(task_id, task_name, params, max_attempts, enqueue_at, state, attempts, last_attempt_run)
              select pair.task, s.task_name, s.params, s.max_attempts, s.enqueue_at - pair.ago, s.state, s.attempts, pair.run
                from pair, (select * from absurd.t_q where state = 'pending' limit 1) s)
            insert into absurd.r_q(run_id, task_id, attempt, state, available_at, created_at)
            select pair.run, pair.task, s.attempt, s.state, s.available_at - pair.ago, s.created_at - pair.ago
              from pair, (select * from absurd.r_q where state = 'pending' limit 1) s"""
