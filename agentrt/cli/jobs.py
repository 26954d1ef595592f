"""The commands about jobs: `jobs`, `why`, `retry`, `cancel`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import click
from rich.table import Table
from rich.text import Text

from agentrt import codec
from agentrt.cli import render
from agentrt.cli.common import JobId, client_of, database_options, in_loop, json_option
from agentrt.cli.reasons import why_line
from agentrt.cli.waits import named_max
from agentrt.client import Client
from agentrt.durable.wait import missing
from agentrt.errors import UsageError
from agentrt.limits import require_name, require_within
from agentrt.model import JobRow, State

_states = [*(state.value for state in State), "pending"]  # pending: scheduled, ready or blocked, as the view has it
_limit_max = 10_000
_reason_chars_max = 500
_steps_max = 30  # of those that an error names


def _known_state(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    if value is not None and value not in _states:
        raise UsageError(f"There is no state {value[:60]!r}. States: {', '.join(_states)}.")
    return value


# ------------------------------------------------------------------ jobs


@click.command()
@database_options
@click.option("--state", callback=_known_state, metavar="STATE", help=f"One of: {', '.join(_states)}.")
@click.option("--agent", metavar="NAME", help="Only jobs of this agent.")
@click.option("--key", metavar="KEY", help="Only jobs with this key.")
@click.option("--limit", default=50, show_default=True, metavar="N", help=f"How many at most, up to {_limit_max}.")
@json_option
def jobs(
    database: str | None, schema: str, state: str | None, agent: str | None, key: str | None, limit: int, as_json: bool
) -> None:
    """List jobs, the newest first."""
    require_within("--limit", limit, 1, _limit_max)
    for what, value in (("--agent", agent), ("--key", key)):
        if value is not None:
            require_name(what, value)

    async def find() -> list[JobRow]:
        async with client_of(database, schema) as client:
            return await client.store.jobs(state=state, agent=agent, key=key, limit=limit + 1)

    rows = in_loop(find())
    if as_json:
        render.print_json([render.job_fields(row) for row in rows[:limit]])
        return
    if rows:
        render.print_table(_job_table(rows[:limit], datetime.now(UTC)))
    if not rows:
        render.complain("no job matches." if state or agent or key else "there are no jobs.")
    elif len(rows) > limit:
        render.complain(f"these are the newest {limit}; --limit shows more.")


def _job_table(rows: list[JobRow], now: datetime) -> Table:
    table = render.table("id", "agent", "key", "state", "attempt", "age", "time", "last error", right=("id", "age"))
    for row in rows:
        table.add_row(
            render.cell(row["id"]),
            render.cell(row["job_type"]),
            render.cell(row["key"]),
            render.state_cell(row["state"]),
            render.cell(render.attempts(row, "/")),
            render.cell(render.since(row["created_at"], now, unit_gap="")),
            render.cell(_time_spent(row, now)),
            render.cell(row["last_error"] if row["state"] != State.succeeded else None),
        )
    return table


def _time_spent(row: JobRow, now: datetime) -> str:
    """Waiting before it is run, running, or run: whichever applies."""
    state = row["state"]
    if state == State.scheduled:
        left_s = render.seconds(now, row["run_after"])
        return f"due in {render.duration(left_s, '')}" if left_s > 0 else "due"
    if state == State.running:
        return f"runs {render.since(row['claimed_at'], now, unit_gap='')}"
    if row["finished_at"] is not None:
        return f"ran {render.duration(_ran_s(row), '')}" if row["claimed_at"] is not None else "never ran"
    return f"waits {render.since(row['run_after'] if state == State.ready else row['created_at'], now, unit_gap='')}"


def _ran_s(row: JobRow) -> float:
    return render.seconds(row["claimed_at"], row["finished_at"])


# ------------------------------------------------------------------ why


@click.command()
@click.argument("job_id", type=JobId(), metavar="ID")
@database_options
@json_option
def why(job_id: int, database: str | None, schema: str, as_json: bool) -> None:
    """Say in one line what a job waits for, or how it ended."""

    async def look() -> tuple[str, str]:
        async with client_of(database, schema) as client:
            return await _explain(client, job_id)

    state, line = in_loop(look())
    if as_json:
        render.print_json({"id": job_id, "state": state, "why": line})
    else:
        verb = Text(" ") if State(state).final else Text.assemble(" is ", render.state_cell(state), ": ")
        render.print_text(Text.assemble(f"job {job_id}", verb, line))  # the line of a final one begins with its verb


async def _explain(client: Client, job_id: int) -> tuple[str, str]:
    """The job's state and the line about it. Raises `JobNotFound`."""
    standing = await client.store.standing(job_id)
    head = None
    if standing is not None and standing["state"] == State.blocked and standing["head_id"] is not None:
        head = await client.store.standing(standing["head_id"])
    waits = await client.store.waits_of(job_id, named_max) if standing is not None else []
    ended = await client.store.job(job_id) if standing is None else None
    if standing is None and ended is None:
        raise await missing(client.store, job_id)
    return (standing or ended or {})["state"], why_line(standing, head, ended, waits)


# ------------------------------------------------------------------ retry, cancel


@click.command()
@click.argument("job_ids", type=JobId(), nargs=-1, required=True, metavar="ID…")
@database_options
@click.option("--from", "from_step", metavar="STEP", help="Forget this step and those begun after it. For one job.")
def retry(job_ids: tuple[int, ...], database: str | None, schema: str, from_step: str | None) -> None:
    """Run failed or cancelled jobs again, with their recorded steps and fresh attempts; delayed ones at once.

    Each id is tried. Exit code 1 when one cannot be run again.
    """
    if from_step is not None and len(job_ids) > 1:
        raise UsageError(f"--from names a step of one job; {len(job_ids)} are given. Retry them one by one.")

    async def work() -> bool:
        async with client_of(database, schema) as client:
            return all([await _retry(client, job_id, from_step) for job_id in job_ids])

    sys.exit(0 if in_loop(work()) else 1)


async def _retry(client: Client, job_id: int, from_step: str | None) -> bool:
    answer = None
    if from_step is None or codec.storable_text(from_step, sys.maxsize) == from_step:
        answer = await client.store.retry(job_id, from_step)
    elif await client.store.job(job_id) is not None:
        answer = "no step"  # what no database stores is no step's name
    if answer in (State.ready, State.scheduled):
        click.echo(f"job {job_id}: ready to run")
    elif answer == State.blocked:
        click.echo(f"job {job_id}: runs when its key is free ('agentrt why {job_id}')")
    elif answer is None:
        render.complain(str(await missing(client.store, job_id)))
    elif answer == "no step":
        render.complain(f"job {job_id} has no step {from_step!r}. {_steps_line(await client.store.steps_of(job_id))}")
    else:
        render.complain(f"job {job_id} cannot be run again: it is {answer}. Failed, cancelled and delayed jobs can.")
    return answer in (State.ready, State.scheduled, State.blocked)


def _steps_line(steps: list[JobRow]) -> str:
    if not steps:
        return "No step of it is recorded."
    more = f" and {len(steps) - _steps_max:,} more ('agentrt show' lists them)" if len(steps) > _steps_max else ""
    return f"Its steps: {', '.join(step['step'] for step in steps[:_steps_max])}{more}."


@click.command()
@click.argument("job_ids", type=JobId(), nargs=-1, required=True, metavar="ID…")
@database_options
@click.option("--reason", default="cancelled from the command line", metavar="TEXT", help="Kept with the job.")
@click.option("--alone", is_flag=True, help="Not the jobs that it waits for: they go on.")
def cancel(job_ids: tuple[int, ...], database: str | None, schema: str, reason: str, alone: bool) -> None:
    """Cancel jobs and what they wait for: those that nobody runs at once, running ones as soon as their coroutine has stopped.

    Each id is tried. Exit code 1 when one has ended otherwise or does not exist.
    """
    kept = codec.storable_text(reason, _reason_chars_max)

    async def work() -> bool:
        async with client_of(database, schema) as client:
            return all([await _cancel(client, job_id, kept, tree=not alone) for job_id in job_ids])

    sys.exit(0 if in_loop(work()) else 1)


async def _cancel(client: Client, job_id: int, reason: str, *, tree: bool) -> bool:
    answer = await client.store.cancel(job_id, reason, tree=tree)
    good = {
        "cancelled": "cancelled",
        "requested": f"asked to stop; it ends when its coroutine has ('agentrt why {job_id}')",
        "already cancelled": "was cancelled already",
    }
    if answer in good:
        click.echo(f"job {job_id}: {good[answer]}")
    elif answer is None:
        render.complain(str(await missing(client.store, job_id)))
    else:
        render.complain(f"job {job_id} cannot be cancelled: it has {answer}.")
    return answer in good
