"""The commands about the installation: `agents`, `migrate`, `doctor`."""

from __future__ import annotations

import sys
from collections import defaultdict

import click
from rich.table import Table
from rich.text import Text

from agentrt.cli import render
from agentrt.cli.checks import Check, examine, live
from agentrt.cli.common import client_of, database_options, in_loop, json_option
from agentrt.config import database_url
from agentrt.errors import StoreUnavailable, UsageError
from agentrt.model import JobRow, State
from agentrt.store.opening import open_store

_check_styles = {"ok": "green", "warn": "yellow", "fail": "bold red"}

# ------------------------------------------------------------------ agents


@click.command()
@database_options
@json_option
def agents(database: str | None, schema: str, as_json: bool) -> None:
    """List the agents that running supervisors know or jobs wait for, and the supervisors."""

    async def look() -> tuple[list[JobRow], list[JobRow]]:
        async with client_of(database, schema) as client:
            return await client.store.counts(), await client.store.supervisors()

    counts, supervisors = in_loop(look())
    known = agent_rows(counts, supervisors)
    if as_json:
        render.print_json({"agents": known, "supervisors": [row | {"live": live(row)} for row in supervisors]})
        return
    if known:
        render.print_table(_agent_table(known))
    else:
        render.complain("no agent is known: no supervisor runs and no job waits.")
    if supervisors:
        render.print_text("")
        render.print_table(_supervisor_table(supervisors))


def agent_rows(counts: list[JobRow], supervisors: list[JobRow]) -> list[JobRow]:
    """One row an agent: how many live supervisors know it, its unfinished jobs by state, what ended in the last hour."""
    by_agent: dict[str, dict[str, int]] = defaultdict(dict)
    workers: dict[str, int] = defaultdict(int)
    for row in counts:
        by_agent[row["agent"]][row["state"]] = row["count"]
    for supervisor in supervisors:
        for agent in supervisor["agents"] if live(supervisor) else ():
            workers[agent] += 1
    return [
        {
            "agent": agent,
            "workers": workers[agent],
            "waits_for_worker": not workers[agent] and any(not State(state).final for state in by_agent[agent]),
            **{state.value: by_agent[agent].get(state, 0) for state in State},
        }
        for agent in sorted({*by_agent, *workers})
    ]


def _agent_table(rows: list[JobRow]) -> Table:
    ended = [state for state in State if state.final]
    headers = [state.value if state not in ended else f"{state.value}/h" for state in State]
    table = render.table("agent", "workers", *headers, right=("workers", *headers), last_is_cut=False)
    for row in rows:
        workers = render.cell("no worker", "bold red") if row["waits_for_worker"] else render.cell(row["workers"])
        counts = [render.cell(row[state]) if row[state] else render.cell(0, "bright_black") for state in State]
        table.add_row(render.cell(row["agent"]), workers, *counts)
    return table


def _supervisor_table(rows: list[JobRow]) -> Table:
    table = render.table("supervisor", "state", "slots", "started", "last beat", "agents", right=("slots",))
    for row in rows:
        table.add_row(
            render.cell(f"{row['host']}:{row['pid']}"),
            render.cell(row["state"]) if live(row) else render.cell("gone", "red"),
            render.cell(row["slots"]),
            render.cell(render.moment(row["started_at"])),
            render.cell(f"{render.duration(row['silent_s'], '')} ago"),
            render.cell(",".join(row["agents"])),
        )
    return table


# ------------------------------------------------------------------ migrate


@click.command()
@database_options
@click.option("--check", is_flag=True, help="Change nothing; exit code 1 when a migration is missing.")
@click.option("--sql", "as_sql", is_flag=True, help="Change nothing; print the SQL of what is missing.")
@json_option
def migrate(database: str | None, schema: str, check: bool, as_sql: bool, as_json: bool) -> None:
    """Bring the tables up to date. Any number of processes may do it at the same time."""
    if check + as_sql + as_json > 1 and as_sql:
        raise UsageError("--sql prints SQL and nothing else: leave --check and --json out.")

    async def work() -> tuple[list[str], list[str], str]:
        store = await open_store(database_url(database), schema)
        try:
            if as_sql:
                return [], [], await store.migration_script()
            if check:
                return [], await store.pending_migrations(), ""
            return await store.migrate(), [], ""
        finally:
            await store.close()

    applied, missing, script = in_loop(work())
    if as_sql:
        click.echo(script, nl=bool(script))
        return
    if as_json:
        render.print_json({"schema": schema, "applied": applied, "missing": missing})
    else:
        lines = [f"applied {name}" for name in applied] + [f"missing {name}" for name in missing]
        click.echo("\n".join(lines or [f"schema {schema} is up to date"]))
    sys.exit(1 if missing else 0)


# ------------------------------------------------------------------ doctor


@click.command()
@database_options
@json_option
def doctor(database: str | None, schema: str, as_json: bool) -> None:
    """Look for what is wrong here, and say how to mend it.

    Exit code 1 when a check fails, 3 when the database cannot be reached.
    """

    async def work() -> tuple[list[Check], bool]:
        try:
            store = await open_store(database_url(database), schema)
            try:
                return await examine(store), True
            finally:
                await store.close()
        except StoreUnavailable as error:
            remedy = "Start it, or correct --database or AGENTRT_DATABASE_URL."
            return [Check("database", "fail", str(error), remedy)], False

    checks, reached = in_loop(work())
    if as_json:
        render.print_json({"ok": all(check.status != "fail" for check in checks), "checks": [vars(c) for c in checks]})
    else:
        for check in checks:
            _print_check(check)
    if not reached:
        sys.exit(3)
    sys.exit(1 if any(check.status == "fail" for check in checks) else 0)


def _print_check(check: Check) -> None:
    style = _check_styles[check.status]
    render.print_text(Text.assemble((f"{check.status:<4}", style), f"  {check.name:<14}  {render.plain(check.text)}"))
    if check.remedy:
        render.print_text(Text.assemble(" " * 22, ("→ ", style), render.plain(check.remedy)))
