"""The doorbell: whether others must ring (NOTIFY) when there is work for this process, or it looks by itself.

A ring takes a lock of the whole cluster and keeps it while its commit is flushed, so senders ring only while some supervisor
wants it. This one does not (it is *quiet*) while
  full     all its slots are taken and more is ready: each end of a job claims the next one anyway;
  storm    rings come faster than it can answer them: it looks every few milliseconds until nothing is found;
  standby  it is idle and enough others listen for its agents: it closes its listening session, which each ring would wake,
           looks once a second, and steps forward when it finds work or too few others are left.
A sender whose transaction began before the quiet ended may have read the old mark and rung nobody. So whoever becomes loud
again looks until each transaction that was under way at that moment has ended. No lock is taken and nobody waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Literal
from uuid import UUID

import structlog

from agentrt.engine.claimer import Claimer
from agentrt.engine.stats import Stats
from agentrt.model import Beat
from agentrt.store import Store
from agentrt.store.listener import Listener

log = structlog.get_logger("agentrt.doorbell")

Reason = Literal["full", "storm", "standby"]

full_for_s = 0.1  # before it is worth a write
loud_for_s = 0.2  # between two times of quiet: the mark moves at most ten times a second
look_again_s, look_again_max_s = 0.1, 1.0
storm_window_s = 0.25
storm_rings = 50  # within the window, and at least two for each claim that they caused
storm_look_s = 0.005
storm_over_s = 0.1
listeners_enough = 2
standby_look_s = 1.0
standby_round = 5  # looks, until leases and delayed jobs are looked at


class Doorbell:
    """One loop. `heard` counts rings, `changed` says that slots were taken or became free."""

    def __init__(self, store: Store, supervisor: UUID, claimer: Claimer, listener: Listener, stats: Stats) -> None:
        self._store = store
        self._supervisor = supervisor
        self._claimer = claimer
        self._listener = listener
        self._stats = stats
        self._event = asyncio.Event()
        self._unrung = True
        self._storm = False
        self._unneeded = False
        self._enough = False  # others listen
        self._claimed_at_beat = -1
        self._window_began = 0.0
        self._rings = 0
        self._answered = 0
        self.stands_by = False
        self.on_loud: Callable[[], None] = lambda: None
        self.on_round: Callable[[], None] = lambda: None

    def changed(self) -> None:
        self._event.set()

    def beaten(self, seen: Beat, *, idle: bool) -> None:
        """A beat: until now nobody may have rung this process, and perhaps it is not needed."""
        self._unrung = self._unrung or seen.unrung
        claimed = self._stats.claimed.total()
        self._enough = seen.ahead >= listeners_enough
        self._unneeded = idle and claimed == self._claimed_at_beat and self._enough
        self._claimed_at_beat = claimed
        self._event.set()

    def heard(self) -> None:
        self._rings += 1
        now = time.monotonic()
        if now - self._window_began < storm_window_s:
            return
        answers = self._stats.claims["notify"] - self._answered
        if now - self._window_began < 2 * storm_window_s and self._rings >= max(storm_rings, 2 * answers):
            self._storm = True
            self._event.set()
        self._window_began, self._rings, self._answered = now, 0, self._stats.claims["notify"]

    async def run(self) -> None:
        await self._store.set_quiet(self._supervisor, False)  # whatever was true before an outage
        self._unrung = True
        while True:
            reason = await self._reason()
            claimed = self._stats.claimed.total()
            await self._store.set_quiet(self._supervisor, True, standby=reason == "standby")
            if reason == "full":
                await self._until(lambda: not self._claimer.full)
            elif reason == "storm":
                await self._look_often()
            else:
                await self._stand_by(claimed)
            await self._store.set_quiet(self._supervisor, False)
            self.on_loud()
            await self._look_behind()
            await asyncio.sleep(loud_for_s)

    async def _reason(self) -> Reason:
        """Wait for a reason to be quiet."""
        while True:
            if self._claimer.full:
                await asyncio.sleep(full_for_s)
                if self._claimer.full:
                    return "full"
            elif self._unrung:
                await self._look_behind()
            elif self._storm:
                self._storm = False
                return "storm"
            elif self._unneeded and self._stats.claimed.total() == self._claimed_at_beat:  # and still so
                return "standby"
            else:
                await self._event.wait()
                self._event.clear()

    async def _until(self, true: Callable[[], bool]) -> None:
        while not true():
            self._event.clear()
            await self._event.wait()

    async def _look_often(self) -> None:
        found = self._stats.claimed.total()
        found_at = time.monotonic()
        while time.monotonic() - found_at < storm_over_s:
            self._claimer.ring("quiet")
            await asyncio.sleep(storm_look_s)
            if self._stats.claimed.total() != found or self._claimer.full:
                found = self._stats.claimed.total()
                found_at = time.monotonic()

    async def _stand_by(self, claimed: int) -> None:
        """Look once a second until there is work (more than `claimed` so far), or too few others listen.

        See meanwhile to what only those who listen hear of.
        """
        log.info(
            "listener.standby", meaning="enough others listen; this process looks once a second until it finds work"
        )
        await self._listener.pause()
        self.stands_by = True
        try:
            looks = 0
            while self._stats.claimed.total() == claimed and self._enough:
                self._claimer.ring("quiet")
                await asyncio.sleep(standby_look_s)
                looks += 1
                if looks % standby_round == 0:
                    self.on_round()
        finally:
            self._unneeded = False  # until a beat says so again
            self.stands_by = False
            self._listener.resume()

    async def _look_behind(self) -> None:
        """Look until every transaction that may have rung nobody has ended. Called when the row says that it wants to be rung."""
        self._unrung = False
        _, horizon = await self._store.horizon()
        pause_s = look_again_s
        while not self._claimer.full:  # else it will be quiet again, and look again after that
            oldest, _ = await self._store.horizon()
            self._claimer.ring("quiet")
            if oldest >= horizon:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, look_again_max_s)
        self._unrung = True
