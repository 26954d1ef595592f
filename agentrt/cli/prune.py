"""The command `prune`: what the supervisors do every hour, now and by hand."""

from __future__ import annotations

import asyncio
import sys

import click

from agentrt.cli import render
from agentrt.cli.common import Duration, client_of, database_options, in_loop, json_option
from agentrt.config import keep_s_min
from agentrt.engine.pruning import Progress
from agentrt.engine.pruning import prune as prune_all
from agentrt.limits import delay_s_max, require_within

_busy_pause_s = 0.2


@click.command()
@click.option(
    "--keep",
    "keep_s",
    type=Duration(),
    default="7d",
    show_default=True,
    envvar="AGENTRT_KEEP",
    metavar="TIME",
    help="Jobs that ended longer ago than this leave, such as 12h or 7d.",
)
@database_options
@json_option
def prune(keep_s: float, database: str | None, schema: str, as_json: bool) -> None:
    """Remove finished jobs past their keeping time, with their steps, attempts, dedup keys, decisions and budgets.

    Unfinished jobs, and what keyed agents keep, are never touched; a job that an unfinished one still needs stays.
    """
    require_within("--keep in seconds", keep_s, keep_s_min, delay_s_max)

    async def work() -> Progress:
        jobs = days = 0
        async with client_of(database, schema) as client:
            while True:
                async for done in prune_all(client.store, keep_s, partly=True):
                    _say_progress(jobs + done.jobs, days + done.days)
                jobs, days = jobs + done.jobs, days + done.days
                if not done.busy:
                    return Progress(jobs, days)
                await asyncio.sleep(_busy_pause_s)  # a supervisor prunes; its batches are short

    done = in_loop(work())
    if as_json:
        render.print_json({"jobs": done.jobs, "days_dropped": done.days, "keep_s": keep_s})
        return
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", err=True, nl=False)
    click.echo(f"pruned {done.jobs:,} jobs; dropped {done.days} whole days")


def _say_progress(jobs: int, days: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\rpruning: {jobs:,} jobs, {days} whole days", err=True, nl=False)
