"""One run: the schema that it has for itself, from before the first table until it is gone again, whatever happens."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from agentrt.bench.report import Report
from agentrt.client import Client, connect
from agentrt.errors import AgentrtError, StoreError
from agentrt.store.opening import open_store
from agentrt.store.postgres import PostgresStore
from agentrt.store.postgres.by_hand import ByHand, Looks, RunSchema

Show = Callable[[str, int, int], None]  # what is done now, how much of it is done, of how much
Timed = Callable[[int], Awaitable[object]]  # does so much

drained_look_s = 0.2
stuck_s = 60.0  # so long may nothing at all happen


class MeasurementFailed(AgentrtError):
    """A measurement could not be brought to its end; the text says why."""


class Stopped(AgentrtError):
    """The user ended the run, which has cleaned up."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"{number.name}: the measurement was stopped, its schema is gone.")
        self.number = number


@dataclass(frozen=True, slots=True)
class Run:
    """What a measurement works with: a schema with agentrt's tables and those of the floors, and nothing in them."""

    url: str
    store: PostgresStore
    by_hand: ByHand
    looks: Looks
    progress: Show

    @property
    def schema(self) -> str:
        return self.store.schema

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A sender as users have it."""
        async with connect(self.store.dsn, schema=self.schema) as client:
            yield client

    async def alternate(self, what: str, total: int, block: int, ours: Timed, floor: Timed) -> tuple[float, float]:
        """Seconds for so much by agentrt, and by hand. Blocks of both alternate, so that what the machine does meanwhile hits
        both alike.
        """
        ours_s = floor_s = 0.0
        for start in range(0, total, block):
            part = min(block, total - start)
            ours_s += await seconds(ours(part))
            floor_s += await seconds(floor(part))
            self.progress(what, start + part, total)
        return ours_s, floor_s

    async def drained(self, what: str, jobs: int, require_alive: Callable[[], None] = lambda: None) -> None:
        """Wait until no job is unfinished. Raises `MeasurementFailed` when they stay as many for long."""
        left, since = jobs, time.monotonic()
        while left:
            began = time.monotonic()
            require_alive()
            now_left = await self.looks.unfinished()
            if now_left != left:
                left, since = now_left, began
            elif began - since > stuck_s:
                raise MeasurementFailed(f"{left} of {jobs} jobs are still unfinished, and none ended in {stuck_s:g} s.")
            self.progress(what, jobs - left, jobs)
            took_s = time.monotonic() - began
            await asyncio.sleep(max(drained_look_s, 20 * took_s))  # the looks take a twentieth of a core at most


async def seconds(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def measured(url: str, schema: str, progress: Show, measure: Callable[[Run], Awaitable[Report]]) -> Report:
    """Make the schema, measure, drop the schema, also when the measurement fails or is told to stop.

    Raises `StoreError` when the schema is not free, `Stopped` after SIGINT or SIGTERM.
    """
    stops = _Stops()
    try:
        with stops.heard():
            store = await open_store(url, schema)
            try:
                async with RunSchema.opened(store.dsn, schema) as own:
                    with stops.put_off():
                        await own.take()
                        try:
                            return await _measure(store, own, url, progress, measure, stops)
                        finally:
                            await _drop(store)
            finally:
                await store.close()
    except asyncio.CancelledError:
        if stops.told is None:
            raise
        raise Stopped(stops.told) from None


async def _measure(
    store: PostgresStore,
    own: RunSchema,
    url: str,
    progress: Show,
    measure: Callable[[Run], Awaitable[Report]],
    stops: _Stops,
) -> Report:
    await store.migrate()
    await own.add_tables()
    async with ByHand.opened(store.dsn, store.schema) as by_hand, Looks.opened(store.dsn, store.schema) as looks:
        with stops.let_in():
            return await measure(Run(url, store, by_hand, looks, progress))


async def _drop(store: PostgresStore) -> None:
    """By a connection of its own: the others may be lost, or inside a transaction."""
    try:
        await store.drop_schema()
    except StoreError as error:
        raise StoreError(
            f"The schema {store.schema!r} of the measurement could not be dropped ({error}). Do it by hand: drop schema"
            f' "{store.schema}" cascade'
        ) from None


class _Stops:
    """SIGINT and SIGTERM cancel the task, once; not while they are put off, for what is made or dropped there must be whole."""

    def __init__(self) -> None:
        self.told: signal.Signals | None = None
        self._off = False
        task = asyncio.current_task()
        assert task is not None
        self._task = task

    @contextmanager
    def heard(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self._signalled, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    @contextmanager
    def put_off(self) -> Iterator[None]:
        self._off = True
        try:
            yield
        finally:
            self._off = False

    @contextmanager
    def let_in(self) -> Iterator[None]:
        """Inside of `put_off`: what came meanwhile takes effect now."""
        if self.told is not None:
            raise asyncio.CancelledError
        self._off = False
        try:
            yield
        finally:
            self._off = True

    def _signalled(self, number: signal.Signals) -> None:
        if self.told is None:
            self.told = number
            if not self._off:
                self._task.cancel()
