"""Floors: below which number the jobs of an agent and a priority are known to be gone, so that no claim looks there.

Claimed and finished jobs leave dead entries at the front of the claim index. While an old snapshot is open nobody may
remove them, and after a million of them each claim would walk a tenth of a second. Jobs are claimed in the order of
their `ord`, so what a claim brought tells where the living ones begin. A floor is a hint: it is used a period after it
was learnt, so that a job that took its number earlier and commits later is still seen; and now and then the whole index
is asked, beside the claims.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence

from agentrt.model import Claimed
from agentrt.store import Store

priorities = 10
period_s = 1.0
look_every_s = 5.0
worth_it = 1_000  # jobs of an agent that were claimed, before its claims are slow enough to matter


class Floors:
    def __init__(self, store: Store, agents: Collection[str]) -> None:
        self._store = store
        none = [0] * priorities
        self._used = {agent: list(none) for agent in agents}
        self._next = {agent: list(none) for agent in agents}  # learnt in the period that runs
        self._claimed = dict.fromkeys(agents, 0)
        self._moved_at = 0.0
        self._unlooked = False  # jobs were claimed since the last look below
        self._doubted = asyncio.Event()
        self.on_found: Callable[[], None] = lambda: None

    def of(self, agents: Sequence[str]) -> tuple[int, ...] | None:
        """Ten numbers an agent; None: no agent has run enough for floors to be worth their look."""
        self._move()
        if not any(self._claimed[agent] >= worth_it for agent in agents):
            return None
        return tuple(floor for agent in agents for floor in self._used[agent])

    def seen(self, jobs: Sequence[Claimed]) -> None:
        """What a claim brought, in the order in which it is claimed."""
        known: set[tuple[str, int]] = set()
        for job in jobs:
            self._claimed[job.agent] += 1
            self._unlooked = True
            if not job.alone and (job.agent, job.priority) not in known:
                known.add((job.agent, job.priority))
                floors = self._next[job.agent]
                floors[job.priority] = max(floors[job.priority], job.ord)

    def doubt(self) -> None:
        """Somebody rang, and nothing was found: it may lie below the floor."""
        if any(count >= worth_it for count in self._claimed.values()):
            self._doubted.set()

    def _move(self) -> None:
        now = time.monotonic()
        if now - self._moved_at >= period_s:
            self._moved_at = now
            for agent, floors in self._next.items():
                self._used[agent] = list(floors)

    async def run(self) -> None:
        """Look below the floors now and then while jobs come; what is found there lowers them."""
        while True:
            try:
                async with asyncio.timeout(look_every_s if self._unlooked else None):
                    await self._doubted.wait()
            except TimeoutError:
                pass
            self._doubted.clear()
            agents = [agent for agent, count in self._claimed.items() if count >= worth_it]
            if agents:
                self._unlooked = False
                began = time.monotonic()
                self._lower(agents, await self._store.floors(agents))
                await asyncio.sleep(max(period_s, 20 * (time.monotonic() - began)))

    def _lower(self, agents: Sequence[str], begin: Sequence[int | None]) -> None:
        found = False
        for place, least in enumerate(begin):
            agent, priority = agents[place // priorities], place % priorities
            for floors in (self._used[agent], self._next[agent]):
                if least is not None and least < floors[priority]:
                    floors[priority] = least
                    found = True
        if found:
            self.on_found()
