"""`agentrt show`: all that is kept of one job."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import click
from rich.text import Text

from agentrt.cli import render
from agentrt.cli.common import JobId, client_of, database_options, in_loop, json_option
from agentrt.cli.waits import failure_text, step_styles, tries_of, wait_text
from agentrt.durable.wait import missing
from agentrt.model import JobRow, State

_output_chars_max = 200  # of a step; --json has it whole
_waits_max = 10_000


@click.command()
@click.argument("job_id", type=JobId(), metavar="ID")
@database_options
@click.option("--verbose", "-v", is_flag=True, help="With the tracebacks.")
@json_option
def show(job_id: int, database: str | None, schema: str, verbose: bool, as_json: bool) -> None:
    """Show all that is kept of one job: its fields, payload, result, failed attempts and recorded steps."""
    row, attempts, steps, waits = in_loop(_look(database, schema, job_id))
    usd, tokens = Decimal(sum(step["usd"] or 0 for step in steps)), sum(step["tokens"] or 0 for step in steps)
    if as_json:
        extra = {
            "attempts": render.rows_without(attempts, "fence"),
            "steps": [_step_fields(step, waits) for step in steps],
            "usd": usd,
            "tokens": tokens,
        }
        render.print_json(render.job_fields(row) | extra)
        return
    render.print_text(Text.assemble((f"job {job_id}", "bold"), "  ", render.state_cell(row["state"])))
    _show_fields(row | {"spent": render.spent(usd, tokens) or None}, datetime.now(UTC))
    for name in ("payload", "result"):
        if row[name] is not None:
            render.print_text(render.heading(name))
            render.print_text(render.json_block(row[name]))
    _show_attempts(attempts, verbose=verbose)
    _show_steps(steps, waits)


async def _look(
    database: str | None, schema: str, job_id: int
) -> tuple[JobRow, list[JobRow], list[JobRow], dict[str, str]]:
    """The job, its attempts, its steps, and what those of them wait for that wait. Raises `JobNotFound`."""
    async with client_of(database, schema) as client:
        row = await client.store.job(job_id)
        if row is None:
            raise await missing(client.store, job_id)
        attempts, steps = await client.store.attempts_of(job_id), await client.store.steps_of(job_id)
        waits = await client.store.waits_of(job_id, _waits_max)
        return row, attempts, steps, {wait["step"]: wait_text(wait) for wait in waits}


def _step_fields(step: JobRow, waits: dict[str, str]) -> dict[str, object]:
    """A step for JSON."""
    values = {name: step[name] and render.json_value(step[name]) for name in ("output", "failure")}
    (fields,) = render.rows_without([step | values | {"waits": waits.get(step["step"])}], "fence", "done")
    return fields


def _show_fields(row: JobRow, now: datetime) -> None:
    fields = {
        "agent": row["job_type"],
        "key": row["key"],
        "attempt": render.attempts(row, " of "),
        "priority": row["priority"],
        "sent": render.with_age(row["created_at"], now),
        "due": render.with_age(row["run_after"], now) if row["state"] == State.scheduled else None,
        "claimed": render.with_age(row["claimed_at"], now),
        "lease ends": render.with_age(row["lease_expires"], now) if row["state"] == State.running else None,
        "ended": render.with_age(row["finished_at"], now),
        "reason": row["reason"],
        "last error": row["last_error"],
        "spent": row["spent"],
        "parent": row["parent"],
        "root": row["root"],
        "supervisor": row["owner_id"],
    }
    for name, value in fields.items():
        if value is not None:
            lines = render.block(str(value)).replace("\n", f"\n{'':12}")
            render.print_text(Text.assemble((f"{name:<12}", "bright_black"), lines))


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
            render.cell(render.since(row["claimed_at"], row["ended_at"])),
            render.cell(f"{row['kind']}: {row['text']}" if row["text"] else row["kind"]),
        )
    render.print_table(table)
    for row in attempts:
        if verbose and row["traceback"]:
            render.print_text(render.heading(f"traceback of attempt {row['attempt']}"))
            render.print_text(render.block(row["traceback"].rstrip()))
    if not verbose and any(row["traceback"] for row in attempts):
        render.print_text(Text("--verbose shows the tracebacks.", style="bright_black"))


def _show_steps(steps: list[JobRow], waits: dict[str, str]) -> None:
    if not steps:
        return
    render.print_text(render.heading("recorded steps"))
    table = render.table(
        "step", "kind", "state", "tries", "child", "place", "recorded", "output", right=("tries", "child")
    )
    for row in steps:
        table.add_row(
            render.cell(row["step"]),
            render.cell(row["kind"]),
            render.cell(row["state"], step_styles.get(row["state"], "")),
            render.cell(tries_of(row) or None),
            render.cell(row["child"]),
            render.cell(row["place"]),
            render.cell(render.moment(row["recorded_at"])),
            render.cell(_came_of(row, waits)),
        )
    render.print_table(table)


def _came_of(row: JobRow, waits: dict[str, str]) -> str | None:
    """What a step waits for, how it failed, or what it gave, shortened."""
    text: str | None = waits.get(row["step"]) or failure_text(row["failure"]) or row["output"]
    return text if text is None or len(text) <= _output_chars_max else f"{text[:_output_chars_max]}…"
