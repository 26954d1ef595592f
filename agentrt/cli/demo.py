"""The demo: one question travels to a language model, and its answer as a job to Discord. Everything is real but Discord.

`python -m agentrt.cli.demo` starts a supervisor on an embedded PostgreSQL with the agents that ship, a small model on
loopback, and a Discord double; sends one question, shows the walk of both messages and the post, and ends.
With `--stay` the services stay up until Ctrl-C.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any

import click
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

import agentrt
from agentrt.agents import llm_task
from agentrt.cli.common import in_loop
from agentrt.config import database_variable, default_database
from agentrt.errors import AgentrtError
from agentrt.store.opening import open_store
from agentrt.testing.fake_discord import FakeDiscord
from agentrt.testing.small_model import model_name

question = "In one or two sentences: why do otters hold hands while they sleep?"
start_s = 120.0
answer_s = 300.0
say = Console(highlight=False)


@click.command()
@click.option("--stay", is_flag=True, help="Keep the services up until Ctrl-C.")
def main(stay: bool) -> None:
    """Run the demo."""
    try:
        in_loop(_stay() if stay else _demo())
    except AgentrtError as error:
        say.print(f"demo: {error}", markup=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


async def _demo() -> None:
    async with FakeDiscord() as discord, _small_model() as base_url:
        log = Path(".agentrt/demo-supervisor.log")
        with _opened(log) as output:
            async with (
                _supervisor(_environment(base_url, discord), output.fileno(), log),
                agentrt.connect(default_database),
            ):
                say.print(f"demo: asking  {question}", markup=False, soft_wrap=True)
                asked = await llm_task.send(prompt=question, max_tokens=80, temperature=0.2, notify="discord_notify")
                answer = await asked.result(timeout_s=answer_s)
                say.print(
                    f"demo: the model answered with {answer.usage.output_tokens} tokens", markup=False, soft_wrap=True
                )
                await _show_walk(asked.id)
    if not discord.messages:
        raise AgentrtError("the post did not arrive at the Discord double; the supervisor's log is in .agentrt/")
    for content in discord.contents("default"):
        say.print(Panel(content, title="the post, as the Discord double received it", expand=False))
    say.print("demo: delivered")


async def _stay() -> None:
    """As the demo, the supervisor's log on this terminal, until it ends."""
    async with FakeDiscord() as discord, _small_model() as base_url:
        say.print("demo: the supervisor starts; Ctrl-C drains and ends it. In another terminal, in this folder:")
        say.print(
            "  .venv/bin/agentrt send llm_task prompt='Why do otters hold hands?' notify=discord_notify\n"
            "  .venv/bin/agentrt jobs\n",
            markup=False,
        )
        async with _supervisor(_environment(base_url, discord), None, None) as process:
            await process.wait()
        for content in discord.contents("default"):
            say.print(Panel(content, title="posted", expand=False))


def _environment(base_url: str, discord: FakeDiscord) -> Mapping[str, str]:
    return {
        **os.environ,
        database_variable: default_database,
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": "not-needed-on-loopback",
        "AGENTRT_LLM_MODEL": model_name,
        "DISCORD_WEBHOOK": discord.webhook("default"),
    }


@asynccontextmanager
async def _small_model() -> AsyncIterator[str]:
    """The model's server; its base URL."""
    with say.status("starting the model"):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "agentrt.testing.small_model",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is the supervisor's; this one ends with its input
        )
        assert process.stdout is not None
        async with asyncio.timeout(start_s):
            base_url = (await process.stdout.readline()).decode().strip()
    if not base_url:
        raise AgentrtError("the model did not start; 'python -m agentrt.testing.small_model' says why.")
    say.print(f"demo: {model_name} answers on {base_url}", markup=False, soft_wrap=True)
    try:
        yield base_url
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@asynccontextmanager
async def _supervisor(
    environment: Mapping[str, str], output: int | None, log: Path | None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`agentrt run agentrt.agents`; with a log, it is up when this is entered and drained when it is left."""
    command = [sys.executable, "-m", "agentrt", "run", "agentrt.agents"]
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=output, stderr=output)
    try:
        if log is not None:
            with say.status("starting the supervisor on embedded PostgreSQL"):
                await _until_started(process, log)
            say.print(
                f"demo: the supervisor is up on {default_database}, its log is {log}", markup=False, soft_wrap=True
            )
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        code = await process.wait()
    if code != 0 and log is not None:
        raise AgentrtError(f"the supervisor ended with exit code {code}; see {log}.")


def _opened(log: Path) -> IO[bytes]:
    log.parent.mkdir(exist_ok=True)
    return log.open("wb")


def _said(log: Path) -> str:
    return log.read_text(errors="replace").strip()


async def _until_started(process: asyncio.subprocess.Process, log: Path) -> None:
    async with asyncio.timeout(start_s):
        while "supervisor.started" not in _said(log):
            if process.returncode is not None:
                raise AgentrtError(f"the supervisor did not start: {_said(log)[-500:]}")
            await asyncio.sleep(0.1)


async def _show_walk(question_id: int) -> None:
    """Wait until the answer's job has ended too, and show who did what, and how long it waited and ran."""
    store = await open_store(default_database)
    try:
        async with asyncio.timeout(answer_s):
            while not (walk := await _ended(store, question_id)):  # noqa: ASYNC110 - the state is the database's
                await asyncio.sleep(0.1)
    finally:
        await store.close()
    table = Table(title="the walk of both messages")
    for title in ("job", "agent", "sent by", "state", "attempt", "waited", "ran"):
        table.add_column(title)
    for row in walk:
        waited = (row["claimed_at"] - row["created_at"]).total_seconds()
        ran = (row["finished_at"] - row["claimed_at"]).total_seconds()
        sender = f"job {row['parent']}" if row["parent"] else "the demo"
        cells = [
            row["id"],
            row["job_type"],
            sender,
            row["state"],
            row["attempt_count"],
            f"{waited * 1000:.1f} ms",
            f"{ran:.3f} s",
        ]
        table.add_row(*map(str, cells))
    say.print(table)


async def _ended(store: Any, question_id: int) -> list[dict[str, Any]]:
    """The question's job and those it sent, once all have ended; else nothing."""
    rows = await store.jobs(state=None, agent=None, key=None, limit=20)
    walk = sorted((row for row in rows if question_id in (row["id"], row["parent"])), key=lambda row: row["id"])
    return walk if len(walk) > 1 and all(row["finished_at"] for row in walk) else []


if __name__ == "__main__":
    main()
