"""The results as tables: a row a peer, medians with their spread, and below what agentrt's are of the best peer's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.table import Table as RichTable

from tests.bench.peers.results import Result, Values

us = "agentrt"
nothing = "–"


@dataclass(frozen=True, slots=True)
class Column:
    """A number of a case. `better` decides who is the best peer; None: nobody competes for it."""

    title: str
    case: str
    number: str
    better: Literal["more", "less"] | None = None


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    head: list[str]
    rows: list[list[str]]


_rate = "jobs_per_s"
columns: dict[str, tuple[str, list[Column]]] = {
    "enqueue": (
        "Enqueue, jobs/s",
        [
            Column("one by one", "serial", _rate, "more"),
            Column("50 producers", "spread", _rate, "more"),
            Column("bulk API", "bulk", _rate, "more"),
        ],
    ),
    "drain": (
        "Drain, jobs that do nothing, one worker",
        [
            Column("as it comes, jobs/s", "default", _rate, "more"),
            Column("best settings, jobs/s", "best", _rate, "more"),
            Column("worker CPU ms/job", "best", "worker_ms_per_job", "less"),
            Column("server CPU ms/job", "best", "server_ms_per_job", "less"),
            Column("transactions/job", "best", "transactions_per_job", "less"),
            Column("WAL bytes/job", "best", "wal_bytes_per_job", "less"),
            Column("ran again", "best", "ran_again"),
        ],
    ),
    "latency": (
        "Latency of a single job, ms from send to its first line",
        [
            Column("as it comes, p50", "default", "p50_ms", "less"),
            Column("best settings, p50", "best", "p50_ms", "less"),
            Column("p95", "best", "p95_ms", "less"),
            Column("p99", "best", "p99_ms", "less"),
        ],
    ),
    "pingpong": ("Ping-pong, each job sends the next", [Column("hops/s", "best", "hops_per_s", "more")]),
    "steps": (
        "Durable steps",
        [
            Column("one workflow, steps/s", "one", "steps_per_s", "more"),
            Column("workflows of 5 steps/s", "many", "workflows_per_s", "more"),
        ],
    ),
    "idle": (
        "A worker with nothing to do",
        [
            Column("as it comes, transactions/s", "default", "transactions_per_s", "less"),
            Column("worker CPU ms/s", "default", "worker_ms_per_s", "less"),
            Column("server CPU ms/s", "default", "server_ms_per_s", "less"),
            Column("low-latency settings, transactions/s", "best", "transactions_per_s", "less"),
        ],
    ),
    "crash": (
        "kill -9 of one of two workers, 50 jobs of 2 s",
        [
            Column("seconds until all have run", "kill", "recovered_s", "less"),
            Column("held by the killed one", "kill", "held"),
            Column("started again", "kill", "ran_again"),
            Column("not run", "kill", "not_run"),
            Column("rows left unfinished", "kill", "left"),
        ],
    ),
    "backlog": ("The first jobs of a long backlog", [Column("jobs/s", "best", _rate, "more")]),
}


def tables(results: Sequence[Result]) -> list[Table]:
    """One for each metric that has results."""
    metrics = [metric for metric in columns if any(result.metric == metric for result in results)]
    return [_table(metric, [result for result in results if result.metric == metric]) for metric in metrics]


def _table(metric: str, results: list[Result]) -> Table:
    title, wanted = columns[metric]
    versions = {result.peer: result.version for result in results}
    seen = {peer: [_find(results, peer, column) for column in wanted] for peer in versions}
    rows = []
    for peer, version in versions.items():
        mine = [result for result in results if result.peer == peer]
        settings = next((result.settings for result in mine if result.case == "best"), mine[-1].settings)
        remarks = [", ".join(f"{name.lstrip('-')}={value}" for name, value in settings.items())]
        remarks += {result.not_measured or result.note for result in mine}
        remark = "; ".join(" ".join(remark.replace("|", "/").split()) for remark in remarks if remark)
        rows.append([f"{peer} {version}", *(_cell(values) for values in seen[peer]), remark])
    if us in seen and len(seen) > 1:
        rows.append(["agentrt ÷ best peer", *(_ratio(seen, place, column) for place, column in enumerate(wanted)), ""])
    return Table(title, ["", *(column.title for column in wanted), "settings, remarks"], rows)


def _find(results: list[Result], peer: str, column: Column) -> Values | None:
    """Who has no better settings than those it comes with has the same number in both places."""
    cases = {result.case: result for result in results if result.peer == peer}
    result = cases.get(column.case) or (cases.get("default") if column.case == "best" else None)
    values = result.numbers.get(column.number) if result is not None else None
    return values if values is not None and values.values else None


def _ratio(seen: dict[str, list[Values | None]], place: int, column: Column) -> str:
    ours = seen[us][place]
    theirs = {peer: values[place] for peer, values in seen.items() if peer != us}
    medians = {peer: values.median for peer, values in theirs.items() if values is not None}
    if ours is None or not medians or column.better is None:
        return nothing
    best = (max if column.better == "more" else min)(medians, key=lambda peer: medians[peer])
    if medians[best] <= 0:
        return f"{best}: 0"
    return f"{ours.median / medians[best]:.2f} ({best})"


def _cell(values: Values | None) -> str:
    if values is None:
        return nothing
    low, high = (_number(value) for value in values.spread)
    return _number(values.median) + (f" ({low}–{high})" if low != high else "")


def _number(value: float) -> str:
    size = abs(value)
    digits = 0 if size >= 100 or value == int(value) else 1 if size >= 10 else 2 if size >= 0.1 else 3
    return f"{value:,.{digits}f}"


def markdown(table: Table) -> str:
    lines = [table.head, ["---"] * len(table.head), *table.rows]
    return f"**{table.title}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def drawn(table: Table) -> RichTable:
    """For a terminal."""
    grid = RichTable(*table.head, title=table.title, title_justify="left", title_style="bold")
    for number, row in enumerate(table.rows):
        grid.add_row(*row, style="bold" if number == len(table.rows) - 1 and row[0].startswith(f"{us} ÷") else "")
    return grid
