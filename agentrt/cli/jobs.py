"""The commands about jobs: `jobs`, `show`, `why`, `retry`, `cancel`."""

from __future__ import annotations

import math
import sys
from datetime import UTC, datetime

import click
from rich.table import Table
from rich.text import Text

from agentrt.cli import render
from agentrt.cli.common import client_of, database_options, in_loop, json_option
from agentrt.cli.reasons import why_line
from agentrt.client import Client
from agentrt.codec import storable_text
from agentrt.durable.wait import missing
from agentrt.errors import UsageError
from agentrt.model import JobRow, State, require_name, require_within

_states = [*(state.value for state in State), "pending"]  # pending: scheduled, ready or blocked, as the view has it
_limit_max = 10_000
_id_max = 2**63 - 1
_reason_chars_max = 500


class JobId(click.ParamType[int]):
    """A job's number, as the database has it."""

    name = "id"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if not (text.isascii() and text.isdigit() and len(text) < 20 and 0 < int(text) <= _id_max):
            raise UsageError(f"{text[:60]!r} is no job id. An id is a whole number; see 'agentrt jobs'.")
        return int(text)


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
            render.cell(_attempts(row, "/")),
            render.cell(_since(row["created_at"], now, unit_gap="")),
            render.cell(_time_spent(row, now)),
            render.cell(row["last_error"] if row["state"] != State.succeeded else None),
        )
    return table


def _attempts(row: JobRow, of: str) -> str:
    most = row["max_attempts"]
    return f"{row['attempt_count']}{of}{most}" if most is not None else str(row["attempt_count"])


def _time_spent(row: JobRow, now: datetime) -> str:
    """Waiting before it is run, running, or run: whichever applies."""
    state = row["state"]
    if state == State.scheduled:
        left_s = _seconds(now, row["run_after"])
        return f"due in {render.duration(left_s, '')}" if left_s > 0 else "due"
    if state == State.running:
        return f"runs {_since(row['claimed_at'], now, unit_gap='')}"
    if row["finished_at"] is not None:
        return f"ran {render.duration(_ran_s(row), '')}" if row["claimed_at"] is not None else "never ran"
    return f"waits {_since(row['run_after'] if state == State.ready else row['created_at'], now, unit_gap='')}"


def _ran_s(row: JobRow) -> float:
    return _seconds(row["claimed_at"], row["finished_at"])


def _since(then: datetime | None, now: datetime, unit_gap: str = " ") -> str:
    return "-" if then is None else render.duration(_seconds(then, now), unit_gap)


def _seconds(start: datetime, end: datetime) -> float:
    if start.tzinfo is None or end.tzinfo is None:  # one is an infinity of the database, see `render.moment`
        return math.inf
    return (end - start).total_seconds()


# ------------------------------------------------------------------ show


@click.command()
@click.argument("job_id", type=JobId(), metavar="ID")
@database_options
@click.option("--verbose", "-v", is_flag=True, help="With the tracebacks.")
@json_option
def show(job_id: int, database: str | None, schema: str, verbose: bool, as_json: bool) -> None:
    """Show all that is kept of one job: its fields, payload, result, failed attempts and recorded steps."""

    async def look() -> tuple[JobRow, list[JobRow], list[JobRow]]:
        async with client_of(database, schema) as client:
            row = await client.store.job(job_id)
            if row is None:
                raise await missing(client.store, job_id)
            return row, await client.store.attempts_of(job_id), await client.store.steps_of(job_id)

    row, attempts, steps = in_loop(look())
    if as_json:
        outputs = [step | {"output": step["output"] and render.json_value(step["output"])} for step in steps]
        extra = {"attempts": render.rows_without(attempts, "fence"), "steps": render.rows_without(outputs, "fence")}
        render.print_json(render.job_fields(row) | extra)
        return
    render.print_text(Text.assemble((f"job {job_id}", "bold"), "  ", render.state_cell(row["state"])))
    _show_fields(row, datetime.now(UTC))
    for name in ("payload", "result"):
        if row[name] is not None:
            render.print_text(render.heading(name))
            render.print_text(render.json_block(row[name]))
    _show_attempts(attempts, verbose=verbose)
    _show_steps(steps)


def _show_fields(row: JobRow, now: datetime) -> None:
    fields = {
        "agent": row["job_type"],
        "key": row["key"],
        "attempt": _attempts(row, " of "),
        "priority": row["priority"],
        "sent": _with_age(row["created_at"], now),
        "due": _with_age(row["run_after"], now) if row["state"] == State.scheduled else None,
        "claimed": _with_age(row["claimed_at"], now),
        "lease ends": _with_age(row["lease_expires"], now) if row["state"] == State.running else None,
        "ended": _with_age(row["finished_at"], now),
        "reason": row["reason"],
        "last error": row["last_error"],
        "parent": row["parent"],
        "root": row["root"],
        "supervisor": row["owner_id"],
    }
    for name, value in fields.items():
        if value is not None:
            lines = render.block(str(value)).replace("\n", f"\n{'':12}")
            render.print_text(Text.assemble((f"{name:<12}", "bright_black"), lines))


def _with_age(when: datetime | None, now: datetime) -> str | None:
    if when is None:
        return None
    if when.tzinfo is None:
        return render.moment(when)
    seconds = _seconds(when, now)
    distance = f"{render.duration(seconds)} ago" if seconds >= 0 else f"in {render.duration(-seconds)}"
    return f"{render.moment(when)} ({distance})"


def _show_attempts(attempts: list[JobRow], *, verbose: bool) -> None:
    if not attempts:
        return
    render.print_text(render.heading("attempts that did not succeed"))
    table = render.table("attempt", "reason", "ended", "ran", "error", right=("attempt",))
    for row in attempts:
        table.add_row(
            render.cell(row["attempt"]),
            render.cell(row["reason"]),
            render.cell(render.moment(row["ended_at"])),
            render.cell(_since(row["claimed_at"], row["ended_at"])),
            render.cell(f"{row['kind']}: {row['text']}" if row["text"] else row["kind"]),
        )
    render.print_table(table)
    for row in attempts:
        if verbose and row["traceback"]:
            render.print_text(render.heading(f"traceback of attempt {row['attempt']}"))
            render.print_text(render.block(row["traceback"].rstrip()))
    if not verbose and any(row["traceback"] for row in attempts):
        render.print_text(Text("--verbose shows the tracebacks.", style="bright_black"))


def _show_steps(steps: list[JobRow]) -> None:
    if not steps:
        return
    render.print_text(render.heading("recorded steps"))
    table = render.table("step", "recorded", "output")
    for row in steps:
        table.add_row(
            render.cell(row["step"]), render.cell(render.moment(row["recorded_at"])), render.cell(row["output"])
        )
    render.print_table(table)


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
    """The job's state and the line about it. Raises `JobNotFound`, `JobExpired`."""
    standing = await client.store.standing(job_id)
    head = None
    if standing is not None and standing["state"] == State.blocked and standing["head_id"] is not None:
        head = await client.store.standing(standing["head_id"])
    ended = await client.store.job(job_id) if standing is None else None
    if standing is None and ended is None:
        raise await missing(client.store, job_id)
    return (standing or ended or {})["state"], why_line(standing, head, ended)


# ------------------------------------------------------------------ retry, cancel


@click.command()
@click.argument("job_ids", type=JobId(), nargs=-1, required=True, metavar="ID…")
@database_options
def retry(job_ids: tuple[int, ...], database: str | None, schema: str) -> None:
    """Run failed or cancelled jobs again, with their recorded steps and fresh attempts; delayed ones at once.

    Each id is tried. Exit code 1 when one cannot be run again.
    """

    async def work() -> bool:
        async with client_of(database, schema) as client:
            return all([await _say_retried(client, job_id, await client.store.retry(job_id)) for job_id in job_ids])

    sys.exit(0 if in_loop(work()) else 1)


async def _say_retried(client: Client, job_id: int, state: str | None) -> bool:
    if state in (State.ready, State.scheduled):
        click.echo(f"job {job_id}: ready to run")
    elif state == State.blocked:
        click.echo(f"job {job_id}: runs when its key is free ('agentrt why {job_id}')")
    elif state is None:
        render.complain(str(await missing(client.store, job_id)))
    else:
        render.complain(f"job {job_id} cannot be run again: it is {state}. Failed, cancelled and delayed jobs can.")
    return state in (State.ready, State.scheduled, State.blocked)


@click.command()
@click.argument("job_ids", type=JobId(), nargs=-1, required=True, metavar="ID…")
@database_options
@click.option("--reason", default="cancelled from the command line", metavar="TEXT", help="Kept with the job.")
def cancel(job_ids: tuple[int, ...], database: str | None, schema: str, reason: str) -> None:
    """Cancel jobs: those that nobody runs at once, running ones as soon as their coroutine has stopped.

    Each id is tried. Exit code 1 when one has ended otherwise or does not exist.
    """
    kept = storable_text(reason, _reason_chars_max)

    async def work() -> bool:
        async with client_of(database, schema) as client:
            return all(
                [await _say_cancelled(client, job_id, await client.store.cancel(job_id, kept)) for job_id in job_ids]
            )

    sys.exit(0 if in_loop(work()) else 1)


async def _say_cancelled(client: Client, job_id: int, answer: str | None) -> bool:
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
