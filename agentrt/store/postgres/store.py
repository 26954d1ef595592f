"""The verbs on PostgreSQL: each builds its arrays, runs one statement, and reads its rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

import asyncpg

from agentrt.codec import dump, parse
from agentrt.errors import LeaseLost, SchemaOutdated, StoreError
from agentrt.model import (
    AgentPolicy,
    Beat,
    Claimed,
    Failure,
    Finish,
    JobRow,
    NewJob,
    Reschedule,
    Result,
    Sent,
    State,
    SweepReport,
)
from agentrt.store import Heard
from agentrt.store.postgres import migrate as migrating
from agentrt.store.postgres.lane import Lane, Lanes, command_timeout_s, connect, translated
from agentrt.store.postgres.listener import PostgresNotifier
from agentrt.store.sql import migrations, statements

_write_lanes = 4


class PostgresStore:
    """A store in one schema of one database.

    Two kinds of connection: the main lane (claims, outcomes, sweeps: one statement at a time by nature) and up to four
    more for the sends and steps of concurrent jobs, opened when they are used. `twin()` is for another event loop.
    """

    def __init__(
        self,
        dsn: str,
        schema: str = "agentrt",
        on_close: Callable[[], None] | None = None,
        timeout_s: float = command_timeout_s,
    ) -> None:
        self.dsn = dsn
        self.schema = schema
        self._on_close = on_close
        self._sql = statements("postgres.sql", schema)
        self._main = Lane(dsn, timeout_s)
        self._lanes = Lanes(dsn, _write_lanes)

    def twin(self, timeout_s: float) -> PostgresStore:
        """The same store for another event loop, with connections of its own that give up after `timeout_s`."""
        return PostgresStore(self.dsn, self.schema, timeout_s=timeout_s)

    async def close(self) -> None:
        await self._main.close()
        await self._lanes.close()
        if self._on_close is not None:
            await asyncio.to_thread(self._on_close)

    # -------------------------------------------------------------- schema

    async def migrate(self) -> list[str]:
        return await migrating.migrate(self.dsn, self.schema)

    async def pending_migrations(self) -> list[str]:
        return await migrating.pending(self.dsn, self.schema)

    async def migration_script(self) -> str:
        """What `migrate` would do, as one transaction of SQL; empty when nothing is missing."""
        return migrating.script(await self.pending_migrations(), self.schema)

    async def prepare(self, *, upgrade: bool = False) -> None:
        """Make the tables where there are none; those of an older agentrt are left alone unless `upgrade` says so.

        Raises `SchemaOutdated` when the tables are not what this agentrt needs.
        """
        missing = await self.pending_migrations()
        if upgrade or len(missing) == len(migrations()):
            await self.migrate()
        elif missing:
            raise SchemaOutdated(
                f"Schema {self.schema!r} lacks the migration{'s' * (len(missing) > 1)} {', '.join(missing)}."
                " Run 'agentrt migrate', then start."
            )

    async def drop_schema(self) -> None:
        """Remove everything: for databases that a test or a measurement made."""
        connection = await connect(self.dsn)
        try:
            with translated("drop schema"):
                await connection.execute(f'drop schema if exists "{self.schema}" cascade')
        finally:
            await connection.close()

    # -------------------------------------------------------------- send, claim

    async def send(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Sent]:
        """Store messages, all or none; on the caller's `connection` they are part of its transaction."""
        addresses = {(job.agent, job.key) for job in jobs if job.key is not None}
        plain = len(addresses) < 2 and all(job.dedup is None for job in jobs)
        statement = self._sql["send_plain" if plain else "send"]
        columns: dict[str, list[Any]] = {
            "agents": [job.agent for job in jobs],
            "keys": [job.key for job in jobs],
            "priorities": [job.priority for job in jobs],
            "delays": [job.delay_s for job in jobs],
            "run_ats": [job.run_at for job in jobs],
            "max_attempts": [job.max_attempts for job in jobs],
            "payloads": [job.payload.decode() for job in jobs],
            "dedups": [job.dedup for job in jobs],
            "parents": [job.parent for job in jobs],
            "roots": [job.root for job in jobs],
            "watched": [job.watched for job in jobs],
        }
        values = [columns[name] for name in statement.names]
        if connection is None:
            rows = await self._lanes.fetch(statement, *values)
        else:
            with translated("send"):
                rows = await connection.fetch(statement.text, *values)
        if plain:
            return [Sent(row["id"]) for row in rows]
        return [Sent(row["id"], row["existed"]) for row in rows]

    async def claim(
        self, supervisor: UUID, wanted: Sequence[tuple[AgentPolicy, int]], total: int, *, alone: bool = True
    ) -> list[Claimed]:
        rows = await self._main.fetch(
            self._sql["claim"],
            supervisor,
            [policy.name for policy, _ in wanted],
            [limit for _, limit in wanted],
            [policy.limit for policy, _ in wanted],
            [policy.max_attempts for policy, _ in wanted],
            [policy.lease_s for policy, _ in wanted],
            total,
            alone,
        )
        limited = {policy.name for policy, _ in wanted if policy.limit is not None}
        jobs = [_claimed(row, limited) for row in rows]
        jobs.sort(key=lambda job: (job.priority, job.ord))
        return jobs

    # -------------------------------------------------------------- outcomes

    async def finish(self, outcomes: Sequence[Finish], *, keyed: bool, limited: bool) -> set[int]:
        rows = await self._main.fetch(
            self._sql["finish"],
            [outcome.id for outcome in outcomes],
            [outcome.fence for outcome in outcomes],
            [outcome.state.value for outcome in outcomes],
            [outcome.result for outcome in outcomes],
            *_failures([outcome.failure for outcome in outcomes]),
            keyed,
            limited,
        )
        return {row[0] for row in rows}

    async def finished_by(self, attempts: Sequence[tuple[int, int]]) -> set[int]:
        rows = await self._main.fetch(
            self._sql["finished_by"], [job_id for job_id, _ in attempts], [fence for _, fence in attempts]
        )
        return {row["id"] for row in rows}

    async def reschedule(self, outcomes: Sequence[Reschedule], *, keyed: bool, limited: bool) -> set[int]:
        rows = await self._main.fetch(
            self._sql["reschedule"],
            [outcome.id for outcome in outcomes],
            [outcome.fence for outcome in outcomes],
            [outcome.delay_s for outcome in outcomes],
            [outcome.counts for outcome in outcomes],
            [outcome.loose for outcome in outcomes],
            *_failures([outcome.failure for outcome in outcomes]),
            keyed,
            limited,
        )
        return {row[0] for row in rows}

    async def record_step(self, job_id: int, fence: int, step: str, output: str) -> str:
        """Returns the output that counts. Raises `LeaseLost` when the attempt no longer owns the job."""
        (row,) = await self._lanes.fetch(self._sql["record_step"], job_id, fence, step, output)
        if not row["owned"]:
            raise LeaseLost(f"job {job_id}, fence {fence}")
        stored: str = row["output"]
        return stored

    # -------------------------------------------------------------- leases, sweep, due

    async def renew(self, leases: Sequence[tuple[int, int, float]]) -> set[int]:
        if not leases:
            return set()
        ids, fences, seconds = zip(*leases, strict=True)
        rows = await self._main.fetch(self._sql["renew"], ids, fences, seconds)
        return {row[0] for row in rows}

    async def sweep(self, limit: int, dead: UUID | None = None) -> SweepReport:
        (row,) = await self._main.fetch(self._sql["sweep"], limit, dead)
        return SweepReport(row["made_ready"], row["ended"], row["next_s"])

    async def due(self, limit: int) -> tuple[int, float | None]:
        (row,) = await self._main.fetch(self._sql["due"], limit)
        return row["moved"], row["next_s"]

    # -------------------------------------------------------------- cancel, retry, wait

    async def cancel(self, job_id: int, reason: str) -> str | None:
        return await self._value("cancel", job_id, reason)

    async def cancel_requests(self, job_ids: Collection[int]) -> list[tuple[int, int, str]]:
        rows = await self._main.fetch(self._sql["cancel_requests"], list(job_ids))
        return [(row["id"], row["fence"], row["reason"]) for row in rows]

    async def retry(self, job_id: int) -> str | None:
        return await self._value("retry", job_id)

    async def results(self, job_ids: Collection[int]) -> list[Result]:
        rows = await self._lanes.fetch(self._sql["results"], list(job_ids))
        return [
            Result(row["id"], row["agent"], State(row["state"]), row["result"], row["reason"], row["error"])
            for row in rows
        ]

    # -------------------------------------------------------------- supervisors

    async def beat(self, supervisor: UUID, about: Mapping[str, Any]) -> Beat:
        statement = self._sql["beat"]
        values = {**about, "limits": dump(about["limits"]).decode()}
        (row,) = await self._main.fetch(statement, supervisor, *(values[name] for name in statement.names[1:]))
        await self._lanes.close_idle()
        return Beat(row["ready"], dict(zip(row["unknown"], row["unknown_jobs"], strict=True)))

    async def tidy_leases(self) -> int:
        (row,) = await self._main.fetch(self._sql["tidy_leases"])
        count: int = row[0]
        return count

    async def leave(self, supervisor: UUID) -> None:
        await self._main.fetch(self._sql["leave"], supervisor)

    async def ensure_days(self, days: int) -> int:
        (row,) = await self._main.fetch(self._sql["ensure_days"], days)
        made: int = row[0]
        return made

    async def listen(self, heard: Heard) -> PostgresNotifier:
        return await PostgresNotifier.open(self.dsn, self.schema, heard)

    # -------------------------------------------------------------- for people

    async def job(self, job_id: int) -> JobRow | None:
        rows = await self._rows("job", job_id)
        return rows[0] if rows else None

    async def jobs(self, *, state: str | None, agent: str | None, key: str | None, limit: int) -> list[JobRow]:
        return await self._rows("jobs", state, agent, key, limit)

    async def attempts_of(self, job_id: int) -> list[JobRow]:
        return await self._rows("attempts_of", job_id)

    async def steps_of(self, job_id: int) -> list[JobRow]:
        return await self._rows("steps_of", job_id)

    async def standing(self, job_id: int) -> JobRow | None:
        rows = await self._rows("standing", job_id)
        return rows[0] if rows else None

    async def counts(self) -> list[JobRow]:
        return await self._rows("counts")

    async def supervisors(self) -> list[JobRow]:
        return await self._rows("supervisors")

    async def examine(self, what: str, *values: object) -> list[JobRow]:
        """What the doctor asks: `jobs` needs the tables; `server`, `transactions` and `ring` do not."""
        return await self._rows(f"doctor_{what}", *values)

    async def _rows(self, name: str, *values: Any) -> list[JobRow]:
        return [dict(row) for row in await self._lanes.fetch(self._sql[name], *values)]

    async def _value(self, name: str, *values: Any) -> str | None:
        (row,) = await self._lanes.fetch(self._sql[name], *values)
        value: str | None = row[0]
        return value


def _claimed(row: asyncpg.Record, limited: set[str]) -> Claimed:
    steps: dict[str, str] = {}
    if row["steps"] is not None:
        outputs = parse(row["steps"])
        if not isinstance(outputs, dict):
            raise StoreError(f"The steps of job {row['id']} are {row['steps']!r}; they must be a JSON object.")
        steps = outputs
    return Claimed(
        id=row["id"],
        fence=row["fence"],
        agent=row["agent"],
        key=row["key"],
        attempt=row["attempt"],
        max_attempts=row["max_attempts"],
        payload=row["payload"],
        priority=row["priority"],
        ord=row["ord"],
        root=row["root"],
        alone=row["alone"],
        lease_s=row["lease_s"],
        waited_s=row["waited_s"],
        limited=row["agent"] in limited,
        steps=steps,
    )


def _failures(failures: Sequence[Failure | None]) -> tuple[list[str | None], ...]:
    """The failure columns: reason, kind, text, traceback."""
    return (
        [failure.reason if failure else None for failure in failures],
        [failure.kind if failure else None for failure in failures],
        [failure.text if failure else None for failure in failures],
        [failure.traceback if failure else None for failure in failures],
    )
