"""What the page and the metrics read: from the database over a connection of their own, one look at a time.

However many ask, the database answers a look once and the answer is kept for a while; a look that took long is kept
longer, so that looking never takes more than a small share of the database's time.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Generic, TypeVar

from agentrt.errors import StoreError, StoreUnavailable
from agentrt.model import JobRow, State
from agentrt.store import Store

T = TypeVar("T")
Counts = dict[str, dict[str, int]]  # by agent, then by state

counts_kept_s = 5.0
rows_kept_s = 1.0
look_s_max = 5.0  # below the 10 s that a scraper waits
rest_factor = 10  # a look is followed by a rest of so many times its length
idle_s = 30.0
newest_jobs = 50
oldest_questions = 50
agents_max = 500
supervisors_max = 50


class Looks:
    """The looks at one store. `close()` at the end; `rest()` whenever nobody looks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._twin: Store | None = None
        self._one_at_a_time = asyncio.Lock()
        self._looked_at = 0.0
        self.counts = _Kept(self, self._counts, counts_kept_s)
        self.supervisors = _Kept(self, self._supervisors, rows_kept_s)
        self.jobs = _Kept(self, self._jobs, rows_kept_s)
        self.decisions = _Kept(self, self._decisions, rows_kept_s)
        self.open_decisions = _Kept(self, lambda store: store.count_decisions(), counts_kept_s)

    async def look(self, read: Callable[[Store], Awaitable[T]]) -> T:
        """One look. Raises `StoreError`, and `StoreUnavailable` after `look_s_max`."""
        async with self._one_at_a_time:
            if self._twin is None:
                self._twin = self._store.twin(look_s_max)
            self._looked_at = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(look_s_max):
                    return await read(self._twin)
            except TimeoutError:
                raise StoreUnavailable(f"The database did not answer within {look_s_max:g} s.") from None

    async def rest_when_idle(self) -> None:
        """Until cancelled: give the connection back when nobody has looked for `idle_s`."""
        while True:
            await asyncio.sleep(idle_s)
            if asyncio.get_running_loop().time() - self._looked_at >= idle_s:
                await self.close()

    async def close(self) -> None:
        async with self._one_at_a_time:
            twin, self._twin = self._twin, None
            if twin is not None:
                with suppress(StoreError):  # a connection that is lost anyway
                    await twin.close()

    @staticmethod
    async def _counts(store: Store) -> Counts:
        """The jobs of the agents that have most of them."""
        counts: Counts = defaultdict(dict)
        for row in await store.counts():
            counts[row["agent"]][row["state"]] = row["count"]
        most = sorted(counts, key=lambda agent: sum(counts[agent].values()), reverse=True)
        return {agent: counts[agent] for agent in sorted(most[:agents_max])}

    @staticmethod
    async def _supervisors(store: Store) -> list[JobRow]:
        rows = await store.supervisors()
        rows.sort(key=lambda row: row["silent_s"])
        return rows[:supervisors_max]

    @staticmethod
    async def _jobs(store: Store) -> list[JobRow]:
        return await store.jobs(state=None, agent=None, key=None, limit=newest_jobs)

    @staticmethod
    async def _decisions(store: Store) -> list[JobRow]:
        return await store.decisions(limit=oldest_questions)


class _Kept(Generic[T]):
    """The answer of one look, or its error, kept for a while."""

    def __init__(self, looks: Looks, read: Callable[[Store], Awaitable[T]], kept_s: float) -> None:
        self._looks = looks
        self._read = read
        self._kept_s = kept_s
        self._answer: T | StoreError | None = None
        self._until = 0.0
        self._asking = asyncio.Lock()

    async def __call__(self) -> T:
        """Raises `StoreError`, as the look did."""
        async with self._asking:
            loop = asyncio.get_running_loop()
            if self._answer is None or loop.time() >= self._until:
                began = loop.time()
                try:
                    self._answer = await self._looks.look(self._read)
                except StoreError as error:
                    self._answer = error
                took_s = loop.time() - began
                self._until = loop.time() + max(self._kept_s, rest_factor * took_s)
            if isinstance(self._answer, StoreError):
                raise self._answer.with_traceback(None)
            return self._answer


def unfinished(counts: Counts) -> Mapping[tuple[str, str], int]:
    """The counts of the states that are not final."""
    return {
        (agent, state): count
        for agent, states in counts.items()
        for state, count in states.items()
        if not State(state).final
    }


def seconds_between(earlier: datetime | None, later: datetime | None) -> float | None:
    """None when either is missing, or is the database's 'infinity', which comes without a zone.

    Never negative: this process's clock may be behind the database's.
    """
    if earlier is None or later is None or earlier.tzinfo is None or later.tzinfo is None:
        return None
    return max(0.0, (later - earlier).total_seconds())
