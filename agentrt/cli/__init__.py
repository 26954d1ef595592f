"""The command line. Exit codes: 0 done, 1 the thing asked for failed, 2 wrong usage, 3 the database cannot be reached."""

from __future__ import annotations

import sys

import click

from agentrt.cli.admin import agents, doctor, migrate
from agentrt.cli.bench import bench
from agentrt.cli.jobs import cancel, jobs, retry, show, why
from agentrt.cli.run import run
from agentrt.cli.send import send
from agentrt.config import redact
from agentrt.errors import AgentrtError, StoreError, StoreUnavailable, UsageError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="agentrt")
def app() -> None:
    """agentrt: an asyncio runtime for many cooperating agents, on nothing but a database."""


for command in (run, send, jobs, show, why, retry, cancel, agents, migrate, doctor, bench):
    app.add_command(command)


def main() -> None:
    """The entry point: errors become one line and an exit code, never a traceback."""
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


def exit_code(error: AgentrtError) -> int:
    if isinstance(error, StoreUnavailable):
        return 3
    return 2 if isinstance(error, (UsageError, StoreError)) else 1
