"""`agentrt decide`: the open questions, and answers to them."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime

import click
from rich.table import Table

from agentrt.cli import render
from agentrt.cli.common import JobId, client_of, database_options, in_loop, json_option
from agentrt.errors import DecisionRefused, UsageError
from agentrt.limits import require_name, require_within
from agentrt.model import JobRow

_limit_max = 10_000


@click.command()
@click.argument("decision_id", type=JobId(), required=False, metavar="[ID")
@click.argument("option", required=False, metavar="OPTION]")
@database_options
@click.option("--by", metavar="NAME", help="Who answers.  [default: your login name]")
@click.option("--limit", default=100, show_default=True, metavar="N", help="How many questions to list at most.")
@json_option
def decide(
    decision_id: int | None,
    option: str | None,
    database: str | None,
    schema: str,
    by: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Answer a question that an agent asks; without arguments, list those that are open.

    ID is the question's, or that of a job with one open question. The first valid answer wins; exit code 1 when this one
    was not taken.
    """
    if decision_id is None:
        require_within("--limit", limit, 1, _limit_max)
        _list(in_loop(_open(database, schema, limit + 1)), limit, as_json=as_json)
        return
    if option is None:
        raise UsageError(f"Which option? agentrt decide {decision_id} OPTION ('agentrt decide' lists them).")
    name = by if by is not None else _login_name()
    require_name("--by", name)
    in_loop(_answer(database, schema, decision_id, option, name))
    if as_json:
        render.print_json({"id": decision_id, "option": option, "by": name})
    else:
        click.echo(render.plain(f"{decision_id}: decided {option!r}, by {name}"))


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user may have no name
        raise UsageError("Your login name cannot be found out. Say who answers: --by NAME.") from None


async def _open(database: str | None, schema: str, limit: int) -> list[JobRow]:
    async with client_of(database, schema) as client:
        return await client.store.decisions(limit=limit)


async def _answer(database: str | None, schema: str, decision_id: int, option: str, by: str) -> None:
    """Raises `DecisionRefused`; of a job that asks several questions, with their ids."""
    async with client_of(database, schema) as client:
        try:
            await client.decide(decision_id, option, by=by)
        except DecisionRefused:
            waits = await client.store.waits_of(decision_id, _limit_max)
            asked = [f"{wait['decision']} {wait['question']!r}" for wait in waits if wait["decision"] is not None]
            if len(asked) < 2:
                raise
            text = f"Job {decision_id} asks {len(asked)} questions: {', '.join(asked)}. Answer one by its id."
            raise DecisionRefused(render.plain(text)) from None


def _list(rows: list[JobRow], limit: int, *, as_json: bool) -> None:
    if as_json:
        render.print_json([_fields(row) for row in rows[:limit]])
        return
    if not rows:
        render.complain("no question is open.")
        return
    render.print_table(_table(rows[:limit], datetime.now(UTC)))
    if len(rows) > limit:
        render.complain(f"these are the oldest {limit}; --limit shows more.")


def _fields(row: JobRow) -> dict[str, object]:
    """An open question for JSON."""
    names = ("id", "job_id", "step", "question", "options", "who", "expires", "created_at")
    return {name: row[name] for name in names} | {"default": row["fallback"]}


def _table(rows: list[JobRow], now: datetime) -> Table:
    headers = ("id", "job", "age", "expires", "who", "options", "question")
    table = render.table(*headers, right=("id", "job", "age"))
    for row in rows:
        left = "never" if row["expires"] is None else f"in {render.since(now, row['expires'], '')}"
        table.add_row(
            render.cell(row["id"]),
            render.cell(row["job_id"]),
            render.cell(render.since(row["created_at"], now, "")),
            render.cell(left if row["fallback"] is None else f"{left}: {row['fallback']}"),
            render.cell("anybody" if row["who"] is None else ", ".join(row["who"])),
            render.cell(" | ".join(row["options"])),
            render.cell(row["question"]),
        )
    return table
