"""The verbs on PostgreSQL: each builds its arrays, runs one statement, and reads its rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from agentrt.codec import dump
from agentrt.errors import SchemaOutdated
from agentrt.model import (
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
    Wanted,
)
from agentrt.store import Heard
from agentrt.store.postgres import migrate as migrating
from agentrt.store.postgres.durable import DurableVerbs
from agentrt.store.postgres.lane import connect, translated
from agentrt.store.postgres.listener import PostgresNotifier
from agentrt.store.postgres.retention import RetentionVerbs
from agentrt.store.postgres.rows import (
    claimed,
    claimed_jobs,
    failure_columns,
    finished_columns,
    reopened,
    sent,
    sent_columns,
    step_columns,
    wanted_columns,
)
from agentrt.store.postgres.sends import SendVerbs
from agentrt.store.sql import migrations

beat_answer_s = 10.0  # far below what other statements may take: it is there to notice a link that has gone silent


class PostgresStore(SendVerbs, DurableVerbs, RetentionVerbs):
    """A store in one schema of one database. `twin()` is for another event loop."""

    _beat_answer_s: float | None = beat_answer_s

    def twin(self, timeout_s: float) -> PostgresStore:
        """The same store for another event loop, with connections of its own that give up after `timeout_s`."""
        return PostgresStore(self.dsn, self.schema, timeout_s=timeout_s)

    async def close(self) -> None:
        await self.close_sends()
        await self._steps.close()
        await super().close()

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

    # -------------------------------------------------------------- claim

    async def claim(self, wanted: Wanted) -> list[Claimed]:
        return claimed_jobs(await self._run("claim", None, wanted_columns(wanted)), wanted)

    async def floors(self, agents: Sequence[str]) -> list[int | None]:
        """Where the ready jobs of these agents begin: ten numbers an agent, one a priority; None: none is ready."""
        (row,) = await self._lanes.fetch_in_turn(self._sql["floors"], list(agents))
        return list(row[0])

    # -------------------------------------------------------------- outcomes

    async def finish(self, outcomes: Sequence[Finish], *, keyed: bool, limited: bool) -> set[int]:
        columns = finished_columns(outcomes) | {"keyed": keyed, "limited": limited}
        return {row[0] for row in await self._run("finish", None, columns)}

    async def turn(
        self, outcomes: Sequence[Finish], wanted: Wanted, *, keyed: Collection[str], limited: bool
    ) -> tuple[set[int], list[Claimed]]:
        columns = finished_columns(outcomes) | wanted_columns(wanted) | {"keyed": list(keyed), "limited": limited}
        first, *rows = await self._run("turn", None, columns)
        return set(first["accepted"]), claimed_jobs((row[1:] for row in rows), wanted)

    async def relay(self, outcomes: Sequence[Finish], job: NewJob, sender: Sender) -> tuple[set[int], Sent | None]:
        """End jobs, and send a message of an attempt. Neither they nor it have a mailbox. None: the attempt has lost its job."""
        columns = finished_columns(outcomes) | sent_columns([job]) | step_columns([job], sender)
        (row,) = await self._run("relay", None, columns)
        return set(row["accepted"]), None if row["id"] is None else sent(row)

    async def finished_by(self, attempts: Sequence[tuple[int, int]]) -> set[int]:
        rows = await self._lanes.fetch(
            self._sql["finished_by"], [job_id for job_id, _ in attempts], [fence for _, fence in attempts]
        )
        return {row["id"] for row in rows}

    async def reschedule(self, outcomes: Sequence[Reschedule], *, keyed: bool, limited: bool) -> set[int]:
        rows = await self._lanes.fetch(
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
        rows = await self._lanes.fetch(
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
        rows = await self._lanes.fetch(self._sql["renew"], ids, fences, seconds)
        return {row[0] for row in rows}

    async def sweep(self, limit: int, dead: UUID | None = None) -> SweepReport:
        (row,) = await self._lanes.fetch_in_turn(self._sql["sweep"], limit, dead)
        return SweepReport(row["made_ready"], row["ended"], row["next_s"])

    async def due(self, limit: int) -> tuple[int, float | None]:
        (row,) = await self._lanes.fetch_in_turn(self._sql["due"], limit)
        return row["moved"], row["next_s"]

    # -------------------------------------------------------------- cancel, retry, wait

    async def cancel(self, job_id: int, reason: str, *, tree: bool = True) -> str | None:
        return await self._value("cancel", job_id, reason, tree)

    async def cancel_requests(self, job_ids: Collection[int]) -> list[tuple[int, int, str]]:
        rows = await self._lanes.fetch_in_turn(self._sql["cancel_requests"], list(job_ids))
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
        parameters = (supervisor, *(values[name] for name in statement.names[1:]))
        # Once: a server that is slow and alive answers the next one.
        patience_s, self._beat_answer_s = self._beat_answer_s, None
        (row,) = await self._lanes.fetch_in_turn(statement, *parameters, answer_s=patience_s)
        self._beat_answer_s = beat_answer_s
        await self._lanes.close_idle()
        await self._mailbox_lanes.close_idle()
        unknown = dict(zip(row["unknown"], row["unknown_jobs"], strict=True))
        return Beat(row["ready"], unknown, row["unrung"], row["ahead"])

    async def set_quiet(self, supervisor: UUID, quiet: bool, *, standby: bool = False) -> None:
        await self._lanes.fetch_in_turn(self._sql["set_quiet"], quiet, standby, supervisor)

    async def horizon(self) -> tuple[int, int]:
        """Of the transactions with a number: the oldest that is under way, and what the next one gets."""
        (row,) = await self._lanes.fetch_in_turn(self._sql["horizon"])
        return row["oldest"], row["next"]

    async def leave(self, supervisor: UUID) -> None:
        await self._lanes.fetch_in_turn(self._sql["leave"], supervisor)

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
        return [claimed(row) for row in await self._lanes.fetch(self._sql["unfinished"], list(agents), after, limit)]

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
