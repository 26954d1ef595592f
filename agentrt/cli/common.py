"""What the commands share: the options that say which database, ids, and an event loop to run in."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import click

from agentrt.client import Client, connect
from agentrt.config import database_variable
from agentrt.errors import UsageError

_units = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_duration = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[smhd]?)", re.ASCII)
_id_max = 2**63 - 1

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class Duration(click.ParamType[float]):
    """A length of time: seconds, or a number with s, m, h or d."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = _duration.fullmatch(str(value))
        if found is None:
            raise UsageError(
                f"{str(value)[:60]!r} is no length of time. Give seconds, or a number with s, m, h or d, such as 7d."
            )
        return float(found["number"]) * _units[found["unit"] or "s"]


class JobId(click.ParamType[int]):
    """A job's number, as the database has it."""

    name = "id"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if not (text.isascii() and text.isdigit() and len(text) < 20 and 0 < int(text) <= _id_max):
            raise UsageError(f"{text[:60]!r} is no job id. An id is a whole number; see 'agentrt jobs'.")
        return int(text)


def database_options(command: F) -> F:
    """`--database` and `--schema`."""
    command = click.option(
        "--schema",
        default="agentrt",
        show_default=True,
        envvar="AGENTRT_SCHEMA",
        metavar="NAME",
        help="Schema of the tables.",
    )(command)
    return click.option(
        "--database",
        metavar="URL",
        help=f"postgresql://… or embedded:PATH.  [default: ${database_variable}, else embedded:.agentrt/postgres]",
    )(command)


def json_option(command: F) -> F:
    """`--json`: one JSON value on standard output instead of a table."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def in_loop(work: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine to its end, on uvloop where there is one."""
    if sys.platform == "win32":
        return asyncio.run(work)
    import uvloop

    return uvloop.run(work)


@asynccontextmanager
async def client_of(database: str | None, schema: str) -> AsyncIterator[Client]:
    """A client for one command."""
    async with connect(database, schema=schema) as client:
        yield client
