"""What a library's module says and does to take part, and the bodies of the jobs, which are the same for all.

Only the standard library: this module runs in every peer's environment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, ClassVar, Literal

from tests.bench.peers.probe import Probe

Kind = Literal["noop", "sleep", "ping", "steps"]
Item = tuple[int, float]  # the job's number, and the seconds, hops or steps its body takes
Settings = dict[str, Any]
handled: tuple[Kind, ...] = ("noop", "sleep", "ping")  # what `handle` does; steps are each library's own
connections = 20  # of a sender with many producers, where the library has a pool


class Adapter:
    """One library. Subclasses are named `Peer`."""

    # By purpose: default (as the library comes), throughput, latency, pingpong, backlog, crash. Without an own one
    # pingpong is as latency, backlog as throughput, else all as default. Crash: leases and heartbeats as they come,
    # 50 jobs at a time.
    settings: ClassVar[dict[str, Settings]] = {"default": {}}
    bulk: ClassVar[bool] = True  # has an API that enqueues many at once
    steps: ClassVar[bool] = False  # has durable steps
    jobs_max: ClassVar[int] = 40_000  # so many are drained: what takes seconds, not minutes, to enqueue and to run
    unfinished: ClassVar[str] = ""  # SQL: how many jobs have not ended; empty: a drain ends with its last job's body
    here: ClassVar[Adapter]  # the one that works in this process, for handlers that are module functions
    probe: Probe

    async def setup(self, dsn: str) -> None:
        """Make the tables in an empty database."""
        raise NotImplementedError

    async def open(self, dsn: str, producers: int) -> None:
        """Connect the sender."""
        raise NotImplementedError

    async def close(self) -> None:
        """Disconnect the sender."""

    async def enqueue(self, kind: Kind, number: int, x: float) -> None:
        """Store one job durably; from a sender, or from inside a job."""
        raise NotImplementedError

    async def enqueue_many(self, kind: Kind, items: Sequence[Item]) -> None:
        """Store many by the library's own API for it."""
        raise NotImplementedError

    async def work(self, dsn: str, settings: Settings) -> None:
        """Be a worker until killed."""
        raise NotImplementedError

    def finished_sql(self, count: int) -> str:
        """SQL that copies a finished row; empty: the library keeps none."""
        return ""

    def pending_sql(self, count: int) -> str:
        """SQL that copies the pending row; empty: there is no such way."""
        return ""

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run on uvloop, whose place is in every environment of an asyncio library."""
        import uvloop

        return uvloop.run(work)

    async def handle(self, kind: str, number: int, x: float) -> None:
        """The body of a job."""
        self.probe.start(number)
        if kind == "sleep":
            await asyncio.sleep(x)
        elif kind == "ping" and number % x:  # the last of a chain has a number that x divides
            await self.enqueue("ping", number + 1, x)
        self.probe.end(number)

    async def step(self, slot: int) -> int:
        """The body of a step."""
        self.probe.start(slot)
        self.probe.end(slot)
        return 1


def copies(table: str, count: int, where: str, **changed: str) -> str:
    """SQL that copies one row of a table. Columns get the given expressions (`s` is the row, `g` counts from 1) or, for
    "", their default. Moments should change: copies that tie would be an artefact in a queue ordered by time."""
    schema, name = table.split(".") if "." in table else ("public", table)
    values = " ".join(f"when '{column}' then $e${text}$e$" for column, text in changed.items() if text)
    left_out = "".join(f" and column_name <> '{column}'" for column, text in changed.items() if not text)
    value = (
        f"case column_name {values} else 's.' || quote_ident(column_name) end"
        if values
        else "'s.' || quote_ident(column_name)"
    )
    return f"""do $do$ declare names text; row_values text; begin
      select string_agg(quote_ident(column_name), ','), string_agg({value}, ',') into names, row_values
        from information_schema.columns where table_schema = '{schema}' and table_name = '{name}'
         and is_generated = 'NEVER' and is_identity = 'NO'{left_out};
      execute 'insert into {table} (' || names || ') select ' || row_values
        || $q$ from (select * from {table} where {where} limit 1) s, generate_series(1, {count}) g$q$; end $do$"""


def earlier(column: str, count: int) -> str:
    """Moments a millisecond apart, the last one the row's own."""
    return f"s.{column} - ({count} - g) * interval '1 millisecond'"
