"""`agentrt bench`: measure this database and this machine."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from agentrt import codec
from agentrt.bench.backlog import Sizes
from agentrt.bench.backlog import backlog as measure_backlog
from agentrt.bench.drain import drain as measure_drain
from agentrt.bench.idle import idle as measure_idle
from agentrt.bench.pingpong import pingpong as measure_pingpong
from agentrt.bench.report import Report
from agentrt.bench.run import Run, Show, Stopped, measured
from agentrt.bench.send import send as measure_send
from agentrt.bench.steps import steps as measure_steps
from agentrt.bench.wake import wake as measure_wake
from agentrt.cli.common import F, in_loop, json_option
from agentrt.config import Settings, database_url, schema_name, setup_logging
from agentrt.errors import UsageError
from agentrt.limits import require_within

Measure = Callable[[Run], Awaitable[Report]]


@click.group()
def bench() -> None:
    """Measure this database and this machine, each figure beside the bare driver's in the same run.

    A run makes a schema for itself and drops it at the end, also after Ctrl-C or an error. A schema that exists is refused,
    unless it is what a killed run left and holds no unfinished job.

    The ratio is agentrt's figure divided by the one by hand: of times, 2 is twice as long; of rates, 0.5 is half as many.
    """


def _run_options(command: F) -> F:
    """`--database`, `--schema`, `--json`: what `_run` takes beside the measurement."""
    command = json_option(command)
    command = click.option(
        "--schema", default="agentrt_bench", show_default=True, metavar="NAME", help="Made for this run, then dropped."
    )(command)
    return click.option("--database", metavar="URL", help="As for the other commands.")(command)


def _size(flag: str, default: float, least: float, most: float, text: str) -> Callable[[F], F]:
    """An option that is a number within limits."""

    def checked(_context: click.Context, _option: click.Parameter, value: float) -> float:
        require_within(flag, value, least, most)
        return value

    return click.option(flag, default=default, show_default=True, callback=checked, help=text)


@bench.command()
@_size("--samples", 300, 10, 100_000, "Single sends on an idle system.")
@_run_options
def wake(samples: int, **options: Any) -> None:
    """From enqueue to running coroutine.

    By hand: insert, trigger, LISTEN and claim.
    """
    _run(partial(measure_wake, samples=samples), **options)


@bench.command()
@_size("--jobs", 20_000, 100, 5_000_000, "Jobs that do nothing, stored before the first is claimed.")
@_size("--processes", 1, 1, 64, "Supervisor processes.")
@_size("--slots", Settings().slots, 1, 100_000, "As for 'agentrt run'.")
@click.option("--log-level", default="warning", show_default=True, help="'agentrt run' says info: two lines a job.")
@_run_options
def drain(jobs: int, processes: int, slots: int, log_level: str, **options: Any) -> None:
    """Jobs that wait, worked off: from the first start to the last end.

    By hand: claims and completions of 100 jobs each on one connection.
    """
    _run(partial(measure_drain, jobs=jobs, processes=processes, slots=slots, log_level=log_level), **options)


@bench.command()
@_size("--one-by-one", 2_000, 100, 1_000_000, "Messages sent one after the other.")
@_size("--concurrent", 20_000, 1_000, 10_000_000, "Messages sent from 50 tasks.")
@_size("--bulk", 50_000, 1_000, 10_000_000, "Messages sent 1,000 at a time.")
@_run_options
def send(one_by_one: int, concurrent: int, bulk: int, **options: Any) -> None:
    """Messages, stored one by one, from 50 tasks, and 1,000 at a time.

    By hand: inserts of 1, 50 and 1,000 rows on one connection.
    """
    _run(partial(measure_send, one_by_one=one_by_one, concurrent=concurrent, bulk=bulk), **options)


@bench.command()
@_size("--hops", 2_000, 10, 1_000_000, "Messages, each sent by the job of the one before.")
@_run_options
def pingpong(hops: int, **options: Any) -> None:
    """Two agents that send each other a message.

    By hand: one commit a hop, which takes a row and leaves the next.
    """
    _run(partial(measure_pingpong, hops=hops), **options)


@bench.command()
@_size("--steps", 2_000, 100, 1_000_000, "Steps of jobs that have nothing else, one job at a time.")
@_size("--concurrent", 10_000, 100, 10_000_000, "Steps of many jobs at once.")
@_size("--jobs", 100, 1, 10_000, "How many.")
@_run_options
def steps(steps: int, concurrent: int, jobs: int, **options: Any) -> None:
    """A fresh step: one after the other, and of many jobs at once.

    By hand: an insert a step under the job's fence; of many jobs one insert for a step of each.
    """
    _run(partial(measure_steps, count=steps, concurrent=concurrent, jobs=jobs), **options)


@bench.command()
@_size("--ready", 200_000, 0, 10_000_000, "Ready jobs in the table.")
@_size("--finished", 200_000, 0, 10_000_000, "Finished ones in history.")
@_size("--delayed", 50_000, 0, 10_000_000, "Jobs of tomorrow.")
@_size("--passing", 10_000, 0, 10_000_000, "Jobs that are claimed and ended before the claims that are timed.")
@_size("--claims", 300, 10, 100_000, "Claims that are timed, of each kind.")
@_size("--batch", 10, 1, 100, "Jobs a claim.")
@click.option("--old-snapshot", is_flag=True, help="Keep a transaction open meanwhile, so that dead rows pile up.")
@_run_options
def backlog(old_snapshot: bool, **options: Any) -> None:
    """A claim in front of many jobs, beside the same on an empty table.

    With 1,000,000 rows of each kind it takes a minute or two, most of it for filling the tables.

    By hand: claims on a small table.
    """
    sizes = Sizes(**{name: options.pop(name) for name in Sizes.__slots__})
    if sizes.ready < sizes.passing + sizes.claims * sizes.batch:
        raise UsageError(
            f"--ready is {sizes.ready:,}; it must be at least --passing plus --claims times --batch:"
            f" {sizes.passing + sizes.claims * sizes.batch:,}."
        )
    _run(partial(measure_backlog, sizes=sizes, old_snapshot=old_snapshot), **options)


@bench.command()
@_size("--seconds", 20.0, 1, 86_400, "How long to look.")
@_run_options
def idle(seconds: float, **options: Any) -> None:
    """What a supervisor with nothing to do takes.

    Its transactions are the statements that it sent itself, its connections those that came with it.

    By hand: a connection that listens.
    """
    _run(partial(measure_idle, window_s=seconds), **options)


def _run(measure: Measure, database: str | None, schema: str, as_json: bool) -> None:
    """Measure with a progress bar, and print the report."""
    url = database_url(database)
    schema_name(schema)
    try:
        with _progress() as show:
            report = in_loop(measured(url, schema, show, measure))
    except Stopped as stopped:
        click.echo(f"agentrt: {stopped}", err=True)
        sys.exit(128 + stopped.number)
    if as_json:
        click.echo(codec.dump(report.figures))
    else:
        _print(report)


def _print(report: Report) -> None:
    console = Console()
    console.print(report.title, style="bold", highlight=False)
    table = Table()
    for name in report.columns:
        table.add_column(
            name, justify="right" if name else "left", style="cyan" if name == "ratio" else None, no_wrap=True
        )
    for row in report.rows:
        table.add_row(*row)
    console.print(table)
    for remark in report.remarks:
        console.print(remark, style="dim", highlight=False)


@contextmanager
def _progress() -> Iterator[Show]:
    """A bar on standard error, where that is a terminal; gives what moves it on. Of the log only what is wrong."""
    setup_logging("warning")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as progress:
        task = progress.add_task("preparing", total=None)
        yield lambda what, done, total: progress.update(task, description=what, completed=done, total=total)
