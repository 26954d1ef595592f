"""The claimer: turns free slots and a reason to look into claimed jobs.

A bell rung while a claim is on its way is not lost: it is cleared before the claim and looked at after it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from uuid import UUID

import structlog

from agentrt.engine.runner import Runner
from agentrt.engine.stats import Cause, Stats
from agentrt.errors import StoreUnavailable
from agentrt.store import Store

log = structlog.get_logger("agentrt.claimer")
claim_max = 100  # measured: larger batches are slower


class Claimer:
    """One loop. `ring` gives it a reason to look; `stop` lets the claim on its way finish and ends it."""

    def __init__(self, store: Store, runner: Runner, stats: Stats, supervisor: UUID, poll_s: float) -> None:
        self._store = store
        self._runner = runner
        self._stats = stats
        self._supervisor = supervisor
        self._poll_s = poll_s
        self._bell = asyncio.Event()
        self._cause: Cause | None = None
        self._hungry: set[str] = set()  # agents that may have ready jobs that were not claimed for want of slots
        self._looked_at = time.monotonic()
        self.ended = asyncio.Event()  # stopped, and no claim is on its way any more
        self._first = 0  # the agent that is asked for first; moves on, so that none starves the others
        self.stopping = False
        self.on_claimed: Callable[[float], None] = lambda _asked_at: None

    def ring(self, cause: Cause) -> None:
        """There may be work. The first cause since the last claim is the one that is counted."""
        if self._cause is None:
            self._cause = cause
        self._bell.set()

    def slot_freed(self, agent: str) -> None:
        """A job ended. Look again if its agent, or one that waits for any slot, may have more."""
        if agent in self._hungry or (self._hungry and self._runner.was_full):
            self.ring("more")

    def alone_ended(self) -> None:
        """The one job that had to run alone has ended: the next of its kind may be claimed."""
        self._hungry.update(self._runner.agents)
        self.ring("more")

    def missed(self) -> None:
        """A beat saw ready jobs. Look, unless a claim did within `poll_s`, or agents are known to wait for slots."""
        if not self._hungry and time.monotonic() - self._looked_at >= self._poll_s:
            self.ring("poll")

    def stop(self) -> None:
        self.stopping = True
        self._bell.set()

    async def run(self) -> None:
        while not self.stopping:
            cause = await self._next_cause()
            if not self.stopping:
                await self._claim(cause)
        self.ended.set()

    async def _next_cause(self) -> Cause:
        await self._bell.wait()
        self._bell.clear()
        cause, self._cause = self._cause or "notify", None
        return cause

    async def _claim(self, cause: Cause) -> None:
        wanted, total = self._runner.free()
        total = min(total, claim_max)
        if cause != "more":
            self._hungry = set(self._runner.agents)
        if not wanted or total <= 0:
            return
        self._first = (self._first + 1) % len(wanted)
        wanted = wanted[self._first :] + wanted[: self._first]
        granted_at = time.monotonic()  # before the statement: our idea of the lease must not outlast the database's
        try:
            jobs = await self._store.claim(self._supervisor, wanted, total, alone=not self._runner.runs_alone)
        except StoreUnavailable:
            self.ring(cause)  # what it would have found is still there
            raise
        self._looked_at = granted_at
        self._stats.claims[cause] += 1
        self._stats.claimed[cause] += len(jobs)
        if jobs and cause == "poll":
            log.warning("claim.found_by_poll", jobs=len(jobs), meaning="a wake-up was lost; please report this")
        got: dict[str, int] = {}
        for job in jobs:
            got[job.agent] = got.get(job.agent, 0) + 1
            self._runner.start(job, granted_at, cause)
        if len(jobs) < total:  # every agent was looked at: those that gave less than was asked have no more
            self._hungry -= {policy.name for policy, limit in wanted if got.get(policy.name, 0) < limit}
        elif self._hungry:
            self.ring("more")
        if jobs:
            self.on_claimed(granted_at)
