"""The command: which peers and metrics, where the server is, what becomes of the results."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

import tests.bench.peers
from tests.bench.peers.environments import libraries
from tests.bench.peers.measures import Sizes, quick
from tests.bench.peers.results import read
from tests.bench.peers.run import Plan, metrics, run
from tests.bench.peers.table import drawn, markdown, tables
from tests.crash.chaos import database

cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentrt-peers"


def main(arguments: list[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    if given.table is not None:
        sys.stdout.write("\n".join(markdown(table) for table in tables(read(given.table))))
        return 0
    given.out.write_text("")  # a file is a run: ratios are of numbers that were taken together
    out = Console()
    folder = Path(tempfile.mkdtemp(prefix="agentrt-peers-"))  # the server, and the workers' logs
    with database(given.database, folder) as dsn:
        plan = Plan(
            dsn=dsn,
            peers=given.peers,
            metrics=given.metrics,
            sizes=quick if given.quick else Sizes(),
            repeats=given.repeats,
            environments=given.environments,
            folder=folder,
            out=given.out,
        )
        try:
            asyncio.run(_until_told(plan, out))
        except (KeyboardInterrupt, asyncio.CancelledError):
            out.print(f"stopped; what was measured is in {given.out}")
            return 130
        finally:
            shutil.rmtree(folder / "postgres", ignore_errors=True)
    for table in tables(read(given.out)):
        out.print(drawn(table) if out.is_terminal else markdown(table))
    out.print(f"{given.out}; as markdown: python -m tests.bench.peers --table {given.out}; workers' logs: {folder}")
    return 0


async def _until_told(plan: Plan, out: Console) -> None:
    """SIGTERM ends the workers too."""
    measuring = asyncio.current_task()
    assert measuring is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, measuring.cancel)
    await run(plan, out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.peers",
        description=tests.bench.peers.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--peers", type=_some_of(list(libraries)), default=list(libraries), metavar="A,B", help="default: all"
    )
    parser.add_argument("--metrics", type=_some_of(metrics), default=metrics, metavar="A,B", help="default: all")
    parser.add_argument(
        "--database", metavar="URL", help="a superuser's, on this machine; an embedded server of its own when not given"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("peers.jsonl"), help="JSON lines, written anew (default: %(default)s)"
    )
    parser.add_argument(
        "--repeats", type=int, default=3, help="of enqueue, drain, latency and steps (default: %(default)s)"
    )
    parser.add_argument("--environments", type=Path, default=cache, metavar="FOLDER", help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="small sizes: to see that it all runs")
    parser.add_argument("--table", type=Path, metavar="RESULTS", help="only print the tables of a run, as markdown")
    return parser


def _some_of(known: list[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        wrong = [name for name in chosen if name not in known]
        if wrong:
            raise argparse.ArgumentTypeError(f"{', '.join(wrong)}: not one of {', '.join(known)}")
        return chosen

    return parse


if __name__ == "__main__":
    sys.exit(main())
