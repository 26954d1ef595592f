"""Agents run inside a test's own process, by a real supervisor; and a clock for their database that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from agentrt.agent import Agent
from agentrt.config import Settings, database_url
from agentrt.engine.supervisor import Supervisor
from agentrt.limits import require_within
from agentrt.store import Store
from agentrt.store.opening import open_store
from agentrt.store.postgres.throwaway import move_clock

_here: dict[Supervisor, str] = {}  # the supervisors of this process that tests run, and their databases
_ahead_s_max = 100 * 366 * 86_400.0


@asynccontextmanager
async def supervising(database: str, *agents: Agent[..., Any], **settings: Any) -> AsyncIterator[Supervisor]:
    """A supervisor in this process and event loop, ready when the block begins and drained when it ends.

    `settings`: those of `agentrt run`, with seconds as numbers: `slots`, `lease_s`, `poll_s`, `warm_s`, `drain_s`, ….

    Raises what ended the supervisor.
    """
    store = await open_store(database_url(database))
    try:
        async with supervising_on(store, *agents, **settings) as supervisor:
            with known_here(supervisor, database):
                yield supervisor
    finally:
        await store.close()


@asynccontextmanager
async def supervising_on(store: Store, *agents: Agent[..., Any], **settings: Any) -> AsyncIterator[Supervisor]:
    """As `supervising`, on a store that the caller keeps."""
    supervisor = Supervisor({agent.name: agent for agent in agents}, store, Settings(**settings))
    ready = asyncio.Event()
    supervisor.on_ready = ready.set
    task = asyncio.ensure_future(supervisor.run())
    waiting = asyncio.ensure_future(ready.wait())
    try:
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        yield supervisor
    finally:
        waiting.cancel()
        supervisor.drain()
        await task


@contextmanager
def known_here(supervisor: Supervisor, database: str) -> Iterator[None]:
    """While inside, a `Clock` of the database takes the supervisor along."""
    _here[supervisor] = database
    try:
        yield
    finally:
        del _here[supervisor]


class Clock:
    """The time of a database: the real one, until it is moved.

    What agentrt decides by stored moments follows it: delays, retries, durable sleeps, timeouts of asks, expiries of questions,
    keeping times, deadlines of jobs that do not run. What runs on a process's own clock does not: `timeout_s` of agents and
    steps, the deadline of a running job, and any clock that an agent reads itself.
    """

    def __init__(self, database: str, *, schema: str = "agentrt") -> None:
        self._database = database
        self._schema = schema

    async def advance(self, seconds: float) -> None:
        """Set the time ahead (or back, with a negative number). What falls due by that happens at once, whichever was due first.

        Jobs that run under `supervising` in this process keep their leases, and those that wait in memory wake as well. A job
        that waits in the memory of another process sees its moment only when it is rebuilt: run that one with `warm_s=0`.
        """
        require_within("seconds", seconds, -_ahead_s_max, _ahead_s_max)
        here = [supervisor for supervisor, database in _here.items() if database == self._database]
        store = await open_store(database_url(self._database), self._schema)
        try:
            await move_clock(store.dsn, self._schema, seconds, [supervisor.id for supervisor in here])
        finally:
            await store.close()
        for supervisor in here:
            if supervisor.ready:
                supervisor.clock_moved(seconds)
