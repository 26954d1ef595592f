"""procrastinate: LISTEN, one job a claim. A job whose worker died stays as it is, unless the cron task of its manual is added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from procrastinate import App, PsycopgConnector

from tests.bench.peers.adapter import Adapter, Item, Kind, Settings, connections, copies, handled


class Peer(Adapter):
    """One job at a time is the best for ping-pong: with more, one that is sent while others are fetched waits for the poll."""

    settings: ClassVar = {
        "default": {},
        "throughput": {"concurrency": 10},
        "crash": {"concurrency": 50, "retry_stalled": True},
    }
    jobs_max = 5_000
    unfinished = "select count(*) from procrastinate_jobs where status in ('todo', 'doing')"

    def _make(self, dsn: str, size: int) -> App:
        app = App(connector=PsycopgConnector(conninfo=dsn, min_size=1 if size == 1 else 4, max_size=size))
        self._tasks = {kind: self._task(app, kind) for kind in handled}
        return app

    def _task(self, app: App, kind: Kind) -> Any:
        @app.task(name=kind)
        async def run(number: int, x: float) -> None:
            await self.handle(kind, number, x)

        return run

    async def setup(self, dsn: str) -> None:
        async with self._make(dsn, 1).open_async() as app:
            await app.schema_manager.apply_schema_async()

    async def open(self, dsn: str, producers: int) -> None:
        self._app = self._make(dsn, 1 if producers == 1 else connections)
        await self._app.open_async()

    async def close(self) -> None:
        await self._app.close_async()

    async def enqueue(self, kind: Kind, number: int, x: float) -> None:
        await self._tasks[kind].defer_async(number=number, x=x)

    async def enqueue_many(self, kind: Kind, items: Sequence[Item]) -> None:
        await self._tasks[kind].batch_defer_async(*({"number": number, "x": x} for number, x in items))

    async def work(self, dsn: str, settings: Settings) -> None:
        app = self._make(dsn, 10)
        if settings.pop("retry_stalled", False):
            self._retry_stalled(app)
        async with app.open_async():
            await app.run_worker_async(**settings)

    def _retry_stalled(self, app: App) -> None:
        """As its manual says."""

        @app.periodic(cron="* * * * *")
        @app.task(queueing_lock="retry_stalled_jobs", pass_context=True)
        async def retry_stalled_jobs(context: Any, timestamp: int) -> None:
            for job in await app.job_manager.get_stalled_jobs():
                await app.job_manager.retry_job(job)

    def finished_sql(self, count: int) -> str:
        return (
            "insert into procrastinate_jobs(queue_name, task_name, priority, args, status, attempts)"
            " select queue_name, task_name, priority, args, 'succeeded', 1"
            f" from (select * from procrastinate_jobs limit 1) job, generate_series(1, {count})"
        )

    def pending_sql(self, count: int) -> str:
        return copies("procrastinate_jobs", count, "status = 'todo'", id="")
