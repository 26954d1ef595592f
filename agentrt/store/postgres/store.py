"""The verbs on PostgreSQL: each builds its arrays, runs one statement, and reads its rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from agentrt.codec import dump
from agentrt.errors import LeaseLost, SchemaOutdated
from agentrt.model import (
    AgentPolicy,
    Beat,
    Claimed,
    Finish,
    JobRow,
    NewJob,
    Park,
    Reschedule,
    Result,
    Sender,
    Sent,
    State,
    SweepReport,
)
from agentrt.store import Heard
from agentrt.store.postgres import migrate as migrating
from agentrt.store.postgres.durable import DurableVerbs
from agentrt.store.postgres.lane import connect, translated
from agentrt.store.postgres.listener import PostgresNotifier
from agentrt.store.postgres.retention import RetentionVerbs
from agentrt.store.postgres.rows import claimed, failure_columns, reopened
from agentrt.store.sql import migrations


class PostgresStore(DurableVerbs, RetentionVerbs):
    """A store in one schema of one database. `twin()` is for another event loop."""

    def twin(self, timeout_s: float) -> PostgresStore:
        """The same store for another event loop, with connections of its own that give up after `timeout_s`."""
        return PostgresStore(self.dsn, self.schema, timeout_s=timeout_s)

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

    async def send(self, jobs: Sequence[NewJob], connection: Any = None, sender: Sender | None = None) -> list[Sent]:
        """Store messages, all or none; on the caller's `connection` they are part of its transaction.

        With a `sender` each is a step of that attempt. Raises `LeaseLost` when it no longer owns its job.
        """
        addresses = {(job.agent, job.key) for job in jobs if job.key is not None}
        plain = sender is None and len(addresses) < 2 and all(job.dedup is None for job in jobs)
        statement = self._sql["send_plain" if plain else "send"]
        columns: dict[str, Any] = {
            "agents": [job.agent for job in jobs],
            "keys": [job.key for job in jobs],
            "priorities": [job.priority for job in jobs],
            "delays": [job.delay_s for job in jobs],
            "run_ats": [job.run_at for job in jobs],
            "max_attempts": [job.max_attempts for job in jobs],
            "payloads": [job.payload.decode() for job in jobs],
            "dedups": [job.dedup for job in jobs],
            "deadlines": [job.deadline_s for job in jobs],
            "watched": [job.watched for job in jobs],
            "parent": sender and sender.job_id,
            "fence": sender and sender.fence,
            "steps": [job.step and job.step.id for job in jobs],
            "asks": [job.asks for job in jobs],
            "timeouts": [job.timeout_s for job in jobs],
            "fingerprints": [job.step and job.step.fingerprint for job in jobs],
            "places": [job.step and job.step.place for job in jobs],
        }
        values = [columns[name] for name in statement.names]
        if connection is None:
            rows = await self._lanes.fetch(statement, *values)
        else:
            with translated("send"):
                rows = await connection.fetch(statement.text, *values)
        if plain:
            return [Sent(row["id"]) for row in rows]
        if sender is not None and not rows:
            raise LeaseLost(f"job {sender.job_id}, fence {sender.fence}")
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
        jobs = [claimed(row, limited) for row in rows]
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
            *failure_columns([outcome.failure for outcome in outcomes]),
            [outcome.counts for outcome in outcomes],
            [outcome.key_state for outcome in outcomes],
            *reopened(outcomes),
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
            *failure_columns([outcome.failure for outcome in outcomes]),
            *reopened(outcomes),
            keyed,
            limited,
        )
        return {row[0] for row in rows}

    async def park(self, outcomes: Sequence[Park], *, limited: bool) -> set[int]:
        waits = [(outcome.id, step) for outcome in outcomes for step in outcome.waits]
        rows = await self._main.fetch(
            self._sql["park"],
            [outcome.id for outcome in outcomes],
            [outcome.fence for outcome in outcomes],
            [outcome.wait_s for outcome in outcomes],
            [job_id for job_id, _ in waits],
            [step for _, step in waits],
            limited,
        )
        return {row[0] for row in rows}

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

    async def cancel(self, job_id: int, reason: str, *, tree: bool = True) -> str | None:
        return await self._value("cancel", job_id, reason, tree)

    async def cancel_requests(self, job_ids: Collection[int]) -> list[tuple[int, int, str]]:
        rows = await self._main.fetch(self._sql["cancel_requests"], list(job_ids))
        return [(row["id"], row["fence"], row["reason"]) for row in rows]

    async def retry(self, job_id: int, from_step: str | None = None) -> str | None:
        return await self._value("retry", job_id, from_step)

    async def way_to(self, job_id: int) -> list[tuple[int, str]]:
        """The jobs from the first of its tree to this one, each sent by the one before, with their agents."""
        return [(row["id"], row["agent"]) for row in await self._rows("way_to", job_id)]

    async def was_issued(self, job_id: int) -> bool:
        """Whether a job of this id was ever made: one that is gone now was pruned."""
        (row,) = await self._rows("was_issued", job_id)
        issued: bool = row["issued"]
        return issued

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

    async def leave(self, supervisor: UUID) -> None:
        await self._main.fetch(self._sql["leave"], supervisor)

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

    async def waits_of(self, job_id: int, limit: int) -> list[JobRow]:
        return await self._rows("waits_of", job_id, limit)

    async def trace(self, job_id: int, jobs_max: int, steps_max: int) -> tuple[list[JobRow], list[JobRow]]:
        """The jobs of the conversation that a job belongs to, the oldest ones, and their steps. No jobs: there is no such job."""
        jobs = await self._rows("trace_jobs", job_id, jobs_max)
        return jobs, await self._rows("trace_steps", [job["id"] for job in jobs], steps_max)

    async def unfinished(self, agents: Collection[str], after: int, limit: int) -> list[Claimed]:
        """Unfinished jobs that have recorded steps, by their ids, as a claim would hand them out; nothing is claimed."""
        return [
            claimed(row, set()) for row in await self._lanes.fetch(self._sql["unfinished"], list(agents), after, limit)
        ]

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
