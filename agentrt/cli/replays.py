"""`agentrt check`: would the unfinished jobs go on with this code?"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Mapping
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from agentrt.agent import Agent
from agentrt.cli import render
from agentrt.cli.common import client_of, database_options, in_loop, json_option
from agentrt.cli.loading import load_agents
from agentrt.config import setup_logging
from agentrt.durable.replay import Replay, replay
from agentrt.limits import require_within
from agentrt.model import Claimed

_limit_max = 100_000
_page = 50  # jobs that are read, and replayed side by side
_unseen_shown_max = 5


@click.command()
@click.argument("modules", nargs=-1, required=True, metavar="MODULE…")
@database_options
@click.option("--limit", default=1_000, show_default=True, metavar="N", help="How many jobs at most, the oldest first.")
@json_option
def check(modules: tuple[str, ...], database: str | None, schema: str, limit: int, as_json: bool) -> None:
    """Replay the recorded steps of all unfinished jobs against the code in these modules, dry.

    No step's function runs, no message goes out, nothing is written; what the agents do outside of steps they do here too.
    Exit code 1 when a job would diverge: its code no longer calls the steps that are recorded.
    """
    require_within("--limit", limit, 1, _limit_max)
    setup_logging("warning")
    with contextlib.redirect_stdout(sys.stderr):  # what the user's code prints is not the answer
        replays, cut = in_loop(_replay_all(load_agents(modules), database, schema, limit))
    diverged = [one for one in replays if one.verdict == "diverged"]
    if as_json:
        jobs = [_fields(one) for one in replays]
        render.print_json({"ok": not diverged, "checked": len(replays), "cut": cut, "jobs": jobs})
    else:
        _print(replays, diverged)
    if cut:
        render.complain(f"these are the oldest {limit:,} jobs with recorded steps; --limit takes more.")
    sys.exit(1 if diverged else 0)


async def _replay_all(
    agents: Mapping[str, Agent[..., Any]], database: str | None, schema: str, limit: int
) -> tuple[list[Replay], bool]:
    """Replays of the oldest jobs, and whether there are more."""
    replays: list[Replay] = []
    async with client_of(database, schema) as client:
        after = 0
        while True:
            jobs = await client.store.unfinished(list(agents), after, min(_page, limit + 1 - len(replays)))
            room = limit - len(replays)
            replays += await _replay_page(agents, jobs[:room])
            if len(jobs) > room or len(jobs) < _page:
                return replays, len(jobs) > room
            after = jobs[-1].id


async def _replay_page(agents: Mapping[str, Agent[..., Any]], jobs: list[Claimed]) -> list[Replay]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(replay(agents[job.agent], job)) for job in jobs]
    return [task.result() for task in tasks]


def _fields(one: Replay) -> dict[str, object]:
    """A replay for JSON."""
    names = ("agent", "verdict", "step", "text", "recorded", "found", "unseen")
    return {"id": one.job_id} | {name: getattr(one, name) for name in names}


def _remark(one: Replay) -> str:
    """What a person should know of a replay that does not diverge; empty when it goes as it should."""
    remark = one.text if one.verdict in ("raises", "unclear") else ""
    if one.unseen:
        shown = ", ".join(one.unseen[:_unseen_shown_max])
        more = f" and {len(one.unseen) - _unseen_shown_max:,} more" if len(one.unseen) > _unseen_shown_max else ""
        at = f"at {one.step} " if one.step is not None else ""
        remark = f"{remark}; " if remark else ""
        remark += f"{at}it has not come to the recorded {shown}{more}"
    return remark


def _print(replays: list[Replay], diverged: list[Replay]) -> None:
    remarks = {one.job_id: _remark(one) for one in replays if one.verdict != "diverged"}
    rows = [one for one in replays if remarks.get(one.job_id) or one.verdict == "diverged"]
    if rows:
        render.print_table(_table(rows, remarks))
    for one in diverged:
        render.print_text(render.heading(render.plain(f"job {one.job_id} ({one.agent}), step {one.step}")))
        render.print_text(Text(f"  {render.plain(one.recorded or '')}\n  {render.plain(one.found or '')}"))
    noted = sum(map(bool, remarks.values()))
    say = f"{len(replays):,} unfinished job{'s' * (len(replays) != 1)} with recorded steps: {len(diverged):,} would diverge"
    render.print_text(f"{say}, {noted:,} with a remark." if noted else f"{say}.")


def _table(rows: list[Replay], remarks: Mapping[int, str]) -> Table:
    table = render.table("id", "agent", "outcome", "step", "remark", right=("id",))
    for one in rows:
        style = "bold red" if one.verdict == "diverged" else "yellow"
        remark = remarks.get(one.job_id, "see below")
        table.add_row(
            render.cell(one.job_id),
            render.cell(one.agent),
            render.cell(one.verdict, style),
            render.cell(one.step),
            render.cell(remark),
        )
    return table
