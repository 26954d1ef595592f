"""The janitor: what must happen by the clock. Each duty is a loop of its own, bounded and safe to run in every process.

due      makes jobs ready when their moment has come, on an exact timer
sweep    takes back what a dead process held, when the next lease ends
beat     shows that this supervisor lives, and rings its own bell to learn whether the listener still hears
days     makes the coming days' history partitions, and tidies up
prune    removes what ended long ago (see engine.pruning)
cancels  hands cancel requests to the running attempts
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import socket
import time
from collections.abc import Callable, Mapping
from uuid import UUID

import structlog

from agentrt.config import Settings
from agentrt.engine.pruning import Progress, prune
from agentrt.engine.runner import Runner
from agentrt.engine.stats import Cause, Stats
from agentrt.model import Beat
from agentrt.store import Store
from agentrt.store.listener import Listener

log = structlog.get_logger("agentrt.janitor")
due_max = 500
sweep_max = 200
quiet_sweep_s = 600.0  # when nothing is heard of; new work brings the next look forward
cancel_look_s = 60.0
days_ahead = 7
days_every_s = 3600.0
prune_first_s = 60.0  # not in the rush of a start
prune_every_s = 3600.0
prune_timeout_s = 30.0
timer_max_s = 3600.0
unknown_told_max = 100  # agents; one more name in the log would not help whoever reads it
unknown_at_once_max = 20
counted_max = 1_000  # of an unknown agent's jobs; see beat in the migrations


class Bell:
    """Something to wait for, at most so long."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()

    async def wait(self, timeout_s: float) -> bool:
        """Whether it was rung; False: the time is up. What is rung from now on counts for the next wait."""
        try:
            async with asyncio.timeout(max(0.0, timeout_s)):
                await self._event.wait()
        except TimeoutError:
            return False
        finally:
            self._event.clear()
        return True


class Janitor:
    def __init__(
        self,
        store: Store,
        settings: Settings,
        runner: Runner,
        listener: Listener,
        stats: Stats,
        supervisor: UUID,
        ring_claimer: Callable[[Cause], None],
    ) -> None:
        self._store = store
        self._settings = settings
        self._runner = runner
        self._listener = listener
        self._stats = stats
        self._supervisor = supervisor
        self._ring_claimer = ring_claimer
        self._shortest_lease_s = min(
            [settings.lease_s, *(agent.lease_s for agent in runner.agents.values() if agent.lease_s is not None)]
        )
        self._next_sweep_at = 0.0
        self._heard_bell = asyncio.Event()
        self.state = "running"
        self.due_bell = Bell()
        self.sweep_bell = Bell()
        self.cancel_bell = Bell()
        self.beat_bell = Bell()
        self._heard_cancel_at = 0.0
        self._told: list[str] = []  # unknown agents that the log has named
        self.on_beat: Callable[[Beat], None] = lambda _seen: None

    async def due(self) -> None:
        """A timer on the next due moment; set anew when a job is delayed, here or elsewhere."""
        while True:
            moved, next_s = await self._store.due(due_max)
            if moved:
                self._ring_claimer("timer")
            if moved < due_max:
                await self.due_bell.wait(timer_max_s if next_s is None else min(max(next_s, 0.0), timer_max_s))

    async def sweep(self) -> None:
        """Look when the next lease of anybody ends. What is claimed after a look ends at the earliest a lease later,
        so new work (`work_seen`) brings the next look forward to then."""
        loop = asyncio.get_running_loop()
        while True:
            self._next_sweep_at = (
                math.inf
            )  # what is seen from here on counts, whatever the look finds that is on its way
            report = await self._store.sweep(sweep_max)
            count = len(report.made_ready) + len(report.ended)
            if count:
                self._stats.swept += count
                log.warning("jobs.swept", made_ready=report.made_ready, ended=report.ended)
            wait_s = quiet_sweep_s if report.next_s is None else min(max(report.next_s, 0.0), quiet_sweep_s)
            at = loop.time() + wait_s + random.uniform(0.02, 0.2)  # noqa: S311 - spreads the sweepers
            self._next_sweep_at = min(self._next_sweep_at, at)
            while count < sweep_max and (left := self._next_sweep_at - loop.time()) > 0:
                await self.sweep_bell.wait(left)

    def look_around(self) -> None:
        """Look for leases that have ended and for jobs that are due, whatever was heard."""
        self._next_sweep_at = 0.0
        self.sweep_bell.ring()
        self.due_bell.ring()

    def work_seen(self) -> None:
        """Somebody may claim something now."""
        at = asyncio.get_running_loop().time() + self._shortest_lease_s + 0.1
        if at < self._next_sweep_at:
            self._next_sweep_at = at
            self.sweep_bell.ring()

    async def beat(self) -> None:
        about = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "agents": sorted(self._runner.agents),
            "slots": self._settings.slots,
            "limits": {
                agent.name: {"limit": agent.limit, "concurrency": agent.concurrency}
                for agent in self._runner.agents.values()
                if agent.limit is not None or agent.concurrency is not None
            },
        }
        while True:
            self._heard_bell.clear()
            listening = self._listener.connection  # one that began to listen after the bell was rung proves nothing
            names_max = min(unknown_at_once_max, unknown_told_max - len(self._told))
            now = {"state": self.state, "told": self._told, "names_max": names_max}
            seen = await self._store.beat(self._supervisor, about | now)
            self.on_beat(seen)
            self._tell_unknown(seen.unknown)
            same = listening is not None and listening is self._listener.connection
            if same and not await self._hears_itself():
                await self._listener.rebuild(f"its own bell was not heard within {self._settings.deaf_s:g} s")
            await self.beat_bell.wait(min(self._settings.beat_s, self._settings.poll_s))

    def _tell_unknown(self, jobs: Mapping[str, int]) -> None:
        """Say once of each agent that its jobs are not for this process."""
        for agent, count in jobs.items():
            self._told.append(agent)
            log.info(
                "agent.unknown",
                agent=agent,
                jobs=count if count < counted_max else f"{counted_max} or more",
                meaning="ready, and left alone: no module of this process declares their agent; one that does will run them",
            )

    async def _hears_itself(self) -> bool:
        try:
            async with asyncio.timeout(self._settings.deaf_s):
                await self._heard_bell.wait()
        except TimeoutError:
            await asyncio.sleep(0.05)  # a loop that was blocked has its input still unread: one more turn
        return self._heard_bell.is_set()

    def knock(self) -> None:
        """Beat at once: the database was lost, and its answer tells all loops that it is back."""
        self._heard_bell.set()  # one that was rung before may never be heard: do not wait for it
        self.beat_bell.ring()

    def heard_bell(self, supervisor: str) -> None:
        if supervisor == str(self._supervisor):
            self._heard_bell.set()

    async def days(self) -> None:
        while True:
            await self._store.ensure_days(days_ahead)
            await self._store.tidy_leases()
            await asyncio.sleep(days_every_s)

    async def prune(self) -> None:
        """On a connection of its own: a batch may take longer than a claim may wait for it."""
        await asyncio.sleep(random.uniform(prune_first_s / 2, prune_first_s))  # noqa: S311 - spreads the processes
        while True:
            store = self._store.twin(timeout_s=prune_timeout_s)
            try:
                done = Progress()
                async for progress in prune(store, self._settings.keep_s):
                    done = progress
            finally:
                await store.close()
            if done.jobs:
                log.info("jobs.pruned", jobs=done.jobs, days=done.days, keep_s=self._settings.keep_s)
            await asyncio.sleep(random.uniform(prune_every_s / 2, prune_every_s))  # noqa: S311 - as above

    async def cancels(self) -> None:
        """Look up who shall be cancelled, when told; and when it begins, for a look may have failed."""
        while True:
            running = list(self._runner.attempts)
            requests = await self._store.cancel_requests(running) if running else ()
            for job_id, fence, reason in requests:
                attempt = self._runner.attempts.get(job_id)
                if attempt is not None and attempt.job.fence == fence:
                    attempt.stop("cancelled", reason)
            await self.cancel_bell.wait(cancel_look_s)

    def heard_cancel(self) -> None:
        self._heard_cancel_at = time.monotonic()
        self.cancel_bell.ring()

    def claimed(self, asked_at: float) -> None:
        """Jobs of a claim begun at `asked_at` have started: a cancel heard since then may have been meant for one of them."""
        if self._heard_cancel_at >= asked_at:
            self.cancel_bell.ring()
