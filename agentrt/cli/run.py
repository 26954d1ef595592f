"""`agentrt run MODULE…`: the supervisor, as one process or as several that a minder keeps."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from uuid import UUID

import click
import structlog

from agentrt.agent import Agent
from agentrt.cli.common import Duration, F, database_options, in_loop
from agentrt.cli.loading import load_agents
from agentrt.config import Settings, database_url, database_variable, schema_name, setup_logging
from agentrt.engine.minder import (
    Minder,
    identity_variable,
    life_variable,
    number_variable,
    ready_variable,
    same_signal_s,
)
from agentrt.engine.supervisor import Supervisor, SupervisorFailed
from agentrt.errors import AgentrtError, ConfigError, StoreUnavailable
from agentrt.store import Store
from agentrt.store.listener import reconnect
from agentrt.store.opening import open_store

log = structlog.get_logger("agentrt.run")
release_max = 1000
gc_threshold = 20_000  # objects
_defaults = Settings()


@dataclass(frozen=True, slots=True)
class _Plan:
    modules: tuple[str, ...]
    url: str
    schema: str
    settings: Settings
    http: str | None
    log_level: str


class _Option(NamedTuple):
    """An option that is a setting of `Settings`, which also says its default."""

    flag: str
    setting: str
    variable: str
    help: str


_options_of_settings = (
    _Option("--slots", "slots", "AGENTRT_SLOTS", "Jobs at a time, a process."),
    _Option("--lease", "lease_s", "AGENTRT_LEASE_S", "A job whose process is silent for so long is taken back."),
    _Option(
        "--beat",
        "heartbeat_s",
        "AGENTRT_HEARTBEAT_S",
        "Heartbeat of a lease, at most a third of it.  [default: a third]",
    ),
    _Option("--poll", "poll_s", "AGENTRT_POLL_S", "The look behind lost notifications."),
    _Option("--drain", "drain_s", "AGENTRT_DRAIN_S", "After SIGTERM, the time jobs have to finish."),
    _Option("--warm", "warm_s", "AGENTRT_WARM_S", "So long does a job that only waits stay in memory."),
    _Option("--step-bytes", "step_bytes_max", "AGENTRT_STEP_BYTES", "The largest value of a step, as JSON."),
    _Option(
        "--keep", "keep_s", "AGENTRT_KEEP", "So long do finished jobs stay, such as 12h or 7d; then they are pruned."
    ),
    _Option(
        "--wait", "start_s", "AGENTRT_START_S", "At the start, the time to wait for a database that is not up yet."
    ),
)


def settings_options(command: F) -> F:
    """An option for each of `_options_of_settings`; a number, in seconds when the setting's name says so."""
    for option in reversed(_options_of_settings):
        default = getattr(_defaults, option.setting)
        command = click.option(
            option.flag,
            option.setting,
            type=int if isinstance(default, int) else Duration() if option.setting == "keep_s" else float,
            default=default,
            show_default=True,
            envvar=option.variable,
            metavar="S" if option.setting.endswith("_s") else None,
            help=option.help,
        )(command)
    return command


@click.command()
@click.argument("modules", nargs=-1, required=True, metavar="MODULE…")
@database_options
@settings_options
@click.option("--processes", default=1, show_default=True, envvar="AGENTRT_PROCESSES", help="Supervisor processes.")
@click.option(
    "--http",
    metavar="HOST:PORT",
    envvar="AGENTRT_HTTP",
    help="Serve /healthz, /readyz, /metrics, a page and links to questions (of several processes, the first).",
)
@click.option(
    "--log-level", default="info", show_default=True, envvar="AGENTRT_LOG_LEVEL", help="debug, info, warning, error."
)
def run(
    modules: tuple[str, ...],
    database: str | None,
    schema: str,
    processes: int,
    http: str | None,
    log_level: str,
    **settings: Any,
) -> None:
    """Run the agents of the named modules until told to stop.

    MODULE is a dotted name (looked for in the current folder first) or the path of a file. SIGTERM or Ctrl-C: stop
    claiming, let jobs finish, hand the rest back, exit 0. A second one: hand all back at once, exit non-zero.
    """
    setup_logging(log_level)
    if processes < 1:
        raise ConfigError(f"--processes is {processes}; it must be at least 1.")
    plan = _Plan(modules, database_url(database), schema_name(schema), Settings(**settings), http, log_level)
    if os.environ.get(number_variable, "1") != "1":
        plan = replace(plan, http=None)  # one address, one server: the first child's
    agents = load_agents(modules)
    minded = identity_variable in os.environ
    if not minded and (processes > 1 or os.getpid() == 1):
        sys.exit(_mind(plan, processes))
    sys.exit(_run_here(agents, plan))


# ------------------------------------------------------------------ one process


def _run_here(agents: Mapping[str, Agent[..., Any]], plan: _Plan) -> int:
    """Run the supervisor in this process; returns the exit code.

    An agent's own subtask that raises SystemExit or KeyboardInterrupt breaks out of the event loop (asyncio raises both
    through it). It must not end the other jobs: the loop is entered again, and the exception ends that job's attempt.
    """
    gc.freeze()  # the modules stay
    gc.set_threshold(gc_threshold)  # at the usual 700, each batch of jobs is looked through several times while it runs
    if sys.platform == "win32":
        loop = asyncio.new_event_loop()
    else:
        import uvloop

        loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    main = loop.create_task(_serve(agents, plan))
    try:
        while not main.done():
            with suppress(SystemExit, KeyboardInterrupt):
                loop.run_until_complete(main)
        return main.result()
    except BaseExceptionGroup as group:
        failed = group.subgroup(SupervisorFailed)
        if failed is None:
            raise
        log.error("supervisor.failed", error=str(failed.exceptions[0]))
        click.echo(f"agentrt: {failed.exceptions[0]}", err=True)
        return 1
    finally:
        with suppress(RuntimeError):
            loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _serve(agents: Mapping[str, Agent[..., Any]], plan: _Plan) -> int:
    """The supervisor with its signals, its minder's pipes and its HTTP door; returns the exit code."""
    code = 0
    loop = asyncio.get_running_loop()
    store = await open_store(plan.url, plan.schema)
    try:
        if plan.url.startswith("embedded:"):
            await store.prepare(upgrade=True)
        identity = os.environ.get(identity_variable)
        supervisor = Supervisor(agents, store, plan.settings, UUID(identity) if identity else None)
        first_at: float | None = None

        def signalled(number: signal.Signals) -> None:
            nonlocal code, first_at
            if first_at is None:
                first_at = loop.time()
                log.info("signal", name=number.name, effect="drain")
            elif loop.time() - first_at < same_signal_s:
                return
            else:
                code = 128 + number
                log.info("signal", name=number.name, effect="hand back at once")
            supervisor.drain()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signalled, number)
        supervisor.on_left_behind = lambda: os._exit(code or 1)  # they would hold the loop for ever
        _join_minder(loop, supervisor)
        async with AsyncExitStack() as stack:
            if plan.http is not None:
                from agentrt.web import serving  # needs an extra

                await stack.enter_async_context(serving(plan.http, supervisor, store))
            await supervisor.run()
    finally:
        await store.close()
    return code


def _join_minder(loop: asyncio.AbstractEventLoop, supervisor: Supervisor) -> None:
    """Tell the minder when this child is ready, and drain when the minder dies."""
    ready, life = os.environ.get(ready_variable), os.environ.get(life_variable)
    if ready is not None:
        supervisor.on_ready = lambda: _say_ready(int(ready))
    if life is not None:
        life_fd = int(life)

        def minder_died() -> None:
            loop.remove_reader(life_fd)
            log.warning("minder.died", effect="drain")
            supervisor.drain()

        loop.add_reader(life_fd, minder_died)


def _say_ready(ready_fd: int) -> None:
    os.write(ready_fd, b"r")
    os.close(ready_fd)


# ------------------------------------------------------------------ several processes


def _mind(plan: _Plan, processes: int) -> int:
    """Mind N children; returns the exit code. The address travels in the environment: command lines can be read by all."""
    store = in_loop(open_store(plan.url, plan.schema))  # holds an embedded server for as long as the minder lives
    environ = {**os.environ, database_variable: plan.url}
    command = [sys.executable, "-m", "agentrt", "run", *plan.modules, *_options(plan)]

    def release(supervisor: UUID) -> None:
        asyncio.run(_release(plan, store.dsn, supervisor))

    try:
        return Minder(command, environ, processes, release).run()
    finally:
        in_loop(store.close())


def _options(plan: _Plan) -> list[str]:
    """What a child is told on its command line."""
    options = {
        "--schema": plan.schema,
        **{option.flag: getattr(plan.settings, option.setting) for option in _options_of_settings},
        "--http": plan.http,
        "--log-level": plan.log_level,
    }
    return [part for name, value in options.items() if value is not None for part in (name, str(value))]


async def _release(plan: _Plan, dsn: str, supervisor: UUID) -> None:
    """Give back what a dead child held, and sign it off; an outage is waited out."""
    from agentrt.store.postgres import PostgresStore

    store = PostgresStore(dsn, plan.schema)
    failures = 0
    try:
        while True:
            try:
                await _release_once(store, supervisor)
                return
            except StoreUnavailable as error:
                failures += 1
                if failures == 1:
                    log.warning("child.not_released", error=str(error), meaning="its leases run out by themselves")
                await asyncio.sleep(reconnect.delay_s(failures))
    except AgentrtError as error:
        log.warning("child.not_released", error=str(error), meaning="its leases run out by themselves")
    finally:
        await store.close()


async def _release_once(store: Store, supervisor: UUID) -> None:
    released = release_max
    while released == release_max:
        report = await store.sweep(release_max, supervisor)
        released = len(report.made_ready) + len(report.ended)
        if released:
            log.warning("child.released", supervisor=str(supervisor), made_ready=report.made_ready, ended=report.ended)
    await store.leave(supervisor)
