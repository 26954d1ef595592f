"""The command line. Exit codes: 0 done, 1 the thing asked for failed, 2 wrong usage, 3 the database cannot be reached."""

from __future__ import annotations

import io
import sys
import traceback
from importlib import import_module

import click

from agentrt.config import redact
from agentrt.errors import AgentrtError, StoreError, StoreUnavailable, UsageError

_modules = {
    "run": "run",
    "send": "send",
    "jobs": "jobs",
    "show": "show",
    "why": "jobs",
    "trace": "trace",
    "retry": "jobs",
    "cancel": "jobs",
    "decide": "decide",
    "check": "replays",
    "agents": "admin",
    "migrate": "admin",
    "doctor": "admin",
    "prune": "prune",
    "bench": "bench",
}


class _Commands(click.Group):
    """Each command's module is imported when it is used, so that a short command starts fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _modules:
            return None
        command: click.Command = getattr(import_module(f"agentrt.cli.{_modules[cmd_name]}"), cmd_name)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="agentrt")
def app() -> None:
    """agentrt: an asyncio runtime for many cooperating agents, on nothing but a database."""


def main() -> None:
    """The entry point: errors become one line and an exit code, never a traceback."""
    _write_whole()
    try:
        app(standalone_mode=False)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except AgentrtError as error:
        click.echo(f"agentrt: {redact(str(error))}", err=True)
        sys.exit(exit_code(error))
    except Exception as error:  # a fault of agentrt's own is one line too, with the place to look at
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = redact(f"{type(error).__name__}: {error}")
        click.echo(f"agentrt: {text} (a fault in agentrt, {place.filename}:{place.lineno}; please report it)", err=True)
        sys.exit(1)


def _write_whole() -> None:
    """With PYTHONUNBUFFERED standard output is written once a text: what a stopped (Ctrl-Z) or frozen process has cut short there
    is lost without a word. A buffer writes the rest.
    """
    own = sys.stdout is sys.__stdout__  # not what somebody who calls us has put in its place
    if own and isinstance(sys.stdout, io.TextIOWrapper) and isinstance(sys.stdout.buffer, io.RawIOBase):
        encoding, errors = sys.stdout.encoding, sys.stdout.errors
        same = io.FileIO(sys.stdout.fileno(), "w", closefd=False)  # whose end is not for us to close
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(same), encoding, errors, line_buffering=True)


def exit_code(error: AgentrtError) -> int:
    if isinstance(error, StoreUnavailable):
        return 3
    return 2 if isinstance(error, (UsageError, StoreError)) else 1
