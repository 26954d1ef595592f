"""Floors: below which number the jobs of an agent and a priority are known to be gone, so that no claim looks there.

Claimed and finished jobs leave dead entries at the front of the claim index. While an old snapshot is open nobody may
remove them, and after a million of them each claim would walk a tenth of a second. Jobs are claimed in the order of
their `ord`, so what a claim brought tells where the living ones begin. A floor is a hint: it is used a period or two after it
was learnt, so that a job that took its number earlier and commits later is still seen. And the whole index is asked, beside
the claims: now and then while jobs are claimed, once after the last of them, and when a claim found nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from agentrt.model import Claimed
from agentrt.store import Store

priorities = 10
period_s = 1.0
look_every_s = 5.0
_none = [0] * priorities
worth_it = 1_000  # jobs of an agent that were claimed, before its claims are slow enough to matter


class Floors:
    """`of` what a claim asks for, `seen` what it brought, `doubt` when it brought nothing; `run` looks below."""

    def __init__(self, store: Store, agents: Collection[str]) -> None:
        self._store = store
        # Used now, learnt in the period before, and in the one that runs: ten numbers an agent.
        self._used, self._settled, self._learnt = ({agent: [0] * priorities for agent in agents} for _ in range(3))
        self._claimed = dict.fromkeys(agents, 0)
        self._moved_at = 0.0
        self._to_look = asyncio.Event()  # jobs were claimed since the last look below
        self._doubted = asyncio.Event()
        self.on_found: Callable[[], None] = lambda: None

    def of(self, agents: Sequence[str]) -> tuple[int, ...] | None:
        """Ten numbers an agent; None: no agent has run enough for floors to be worth their look."""
        self._move()
        worth = set(self._worth())
        if worth.isdisjoint(agents):
            return None
        floors: list[int] = []
        for agent in agents:
            floors += self._used[agent] if agent in worth else _none
        return tuple(floors)

    def seen(self, jobs: Sequence[Claimed]) -> None:
        """What a claim brought, in the order in which it is claimed."""
        known: set[tuple[str, int]] = set()
        for job in jobs:
            self._claimed[job.agent] += 1
            if not job.alone and (job.agent, job.priority) not in known:
                known.add((job.agent, job.priority))
                floors = self._learnt[job.agent]
                floors[job.priority] = max(floors[job.priority], job.ord)
        if jobs:
            self._to_look.set()

    def doubt(self) -> None:
        """Nothing was found, or what was is free again: there may be something below the floors."""
        if self._worth():
            self._doubted.set()
            self._to_look.set()

    def _worth(self) -> list[str]:
        return [agent for agent, count in self._claimed.items() if count >= worth_it]

    def _move(self) -> None:
        now = time.monotonic()
        if now - self._moved_at >= period_s:
            self._moved_at = now
            for agent, floors in self._learnt.items():
                self._used[agent] = self._settled[agent]
                self._settled[agent] = list(floors)

    async def run(self) -> None:
        """Look below the floors; what is found there lowers them. The less is found, the less often, down to the usual pace."""
        pause_s = period_s
        while True:
            await self._to_look.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(look_every_s):
                    await self._doubted.wait()
            self._to_look.clear()
            self._doubted.clear()
            agents = self._worth()
            if agents:
                began = time.monotonic()
                try:
                    begin = await self._store.floors(agents)
                except BaseException:
                    self.doubt()  # what it would have found is still there
                    raise
                found = self._lower(agents, begin)
                pause_s = period_s if found else min(2 * pause_s, look_every_s)
                await asyncio.sleep(max(pause_s, 20 * (time.monotonic() - began)))

    def _lower(self, agents: Sequence[str], begin: Sequence[int | None]) -> bool:
        found = False
        for place, least in enumerate(begin):
            agent, priority = agents[place // priorities], place % priorities
            for floors in (self._used[agent], self._settled[agent], self._learnt[agent]):
                if least is not None and least < floors[priority]:
                    floors[priority] = least
                    found = True
        if found:
            self.on_found()
        return found
