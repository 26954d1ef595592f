"""`agentrt bench`: measure this database and this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from agentrt import codec
from agentrt.bench.steps import StepsReport
from agentrt.bench.steps import steps as measure_steps
from agentrt.bench.wake import WakeReport
from agentrt.bench.wake import wake as measure_wake
from agentrt.cli.common import in_loop, json_option
from agentrt.config import database_url, setup_logging
from agentrt.limits import require_within
from agentrt.store.postgres import by_hand


@click.group()
def bench() -> None:
    """Measure this database and this machine, each figure beside the bare driver's in the same run."""


@bench.command()
@click.option("--database", metavar="URL", help="As for the other commands.")
@click.option("--samples", default=300, show_default=True, help="Single sends on an idle system.")
@json_option
def wake(database: str | None, samples: int, as_json: bool) -> None:
    """From enqueue to running coroutine, beside insert, trigger, LISTEN and claim by hand."""
    require_within("--samples", samples, 10, 100_000)
    with _progress("wake", samples) as progress:
        report = in_loop(measure_wake(database_url(database), samples, progress))
    if as_json:
        click.echo(codec.dump(report.as_dict()))
    else:
        _print_wake(report)


@bench.command()
@click.option("--database", metavar="URL", help="As for the other commands.")
@click.option("--steps", "count", default=2_000, show_default=True, help="Steps of jobs that have nothing else.")
@json_option
def steps(database: str | None, count: int, as_json: bool) -> None:
    """A fresh step, beside a fenced insert by hand."""
    require_within("--steps", count, 100, 1_000_000)
    with _progress("steps", count) as progress:
        report = in_loop(measure_steps(database_url(database), count, progress))
    if as_json:
        click.echo(codec.dump(report.as_dict()))
    else:
        _print_steps(report)


@bench.command(hidden=True)
def receive_by_hand() -> None:
    """The receiving side of the path by hand: a process that `wake` starts."""
    in_loop(by_hand.receive(database_url()))


def _print_wake(report: WakeReport) -> None:
    table = Table(title=f"wake-up, {report.samples} single sends")
    for title in ("", "p50 ms", "p99 ms"):
        table.add_column(title, justify="right" if title else "left")
    table.add_row("agentrt", f"{report.p50_ms:.2f}", f"{report.p99_ms:.2f}")
    table.add_row("by hand (asyncpg)", f"{report.floor_p50_ms:.2f}", f"{report.floor_p99_ms:.2f}")
    table.add_row("ratio", f"{report.ratio:.2f}", f"{report.p99_ms / report.floor_p99_ms:.2f}")
    Console().print(table)


def _print_steps(report: StepsReport) -> None:
    table = Table(title=f"{report.steps} steps, one after the other")
    for title in ("", "ms a step", "round trips"):
        table.add_column(title, justify="right" if title else "left")
    table.add_row("agentrt", f"{report.ms_per_step:.3f}", f"{report.round_trips_per_step:.2f}")
    table.add_row("fenced insert by hand (asyncpg)", f"{report.floor_ms:.3f}", "1.00")
    table.add_row("ratio", f"{report.ratio:.2f}", "")
    Console().print(table)


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, where that is a terminal; gives what moves it on. Of the log only what is wrong."""
    setup_logging("warning")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)
