"""The claimer: turns free slots and a reason to look into claimed jobs.

A bell rung while a claim is on its way is not lost: it is cleared before the claim and looked at after it. While there is
more to do than slots, no claim is needed: the statement that ends jobs claims the next ones into their slots (`along`).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from uuid import UUID

import structlog

from agentrt.engine.floors import Floors
from agentrt.engine.look import Look, Mailboxes, batch_max
from agentrt.engine.runner import Runner
from agentrt.engine.stats import Cause, Stats
from agentrt.model import Claimed, Wanted
from agentrt.store import Store

log = structlog.get_logger("agentrt.claimer")


class Claimer:
    """One loop. `ring` gives it a reason to look; `stop` lets the claim on its way finish and ends it."""

    def __init__(self, store: Store, runner: Runner, stats: Stats, supervisor: UUID, poll_s: float) -> None:
        self._store = store
        self._runner = runner
        self._slots = runner.slots
        self._stats = stats
        self._supervisor = supervisor
        self._poll_s = poll_s
        self._bell = asyncio.Event()
        self._cause: Cause | None = None
        self._hungry: set[str] = set()  # agents that may have ready jobs that were not claimed for want of slots
        self._news = 0  # how many times there was a reason to think that any agent may have ready jobs
        self._looked_at = time.monotonic()
        self._first = 0  # the agent that is asked for first; moves on, so that none starves the others
        self._was_full = False  # all slots were taken after the last look
        self._on_their_way = 0
        self.ended = asyncio.Event()  # stopped, and no claim is on its way any more
        self.floors = Floors(store, runner.agents)
        self.stopping = False
        self.on_claimed: Callable[[float], None] = lambda _asked_at: None
        self.on_looked: Callable[[], None] = lambda: None

    @property
    def full(self) -> bool:
        """Whether all slots are taken and the next one that becomes free is filled without a ring."""
        return bool(self._hungry) and not self._slots.has_room()

    def ring(self, cause: Cause) -> None:
        """There may be work. The first cause since the last claim is the one that is counted."""
        if self._cause is None:
            self._cause = cause
        self._bell.set()

    def slot_freed(self, agent: str) -> None:
        """A job ended, or waits. Look again if its agent, or one that waits for any slot, may have more."""
        waits = agent in self._hungry or (self._hungry and self._was_full)
        if waits and self._slots.has_room(agent):  # else the statement that frees it has asked for the next one
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
            await self._bell.wait()
            look = self._look(self._take_cause() or "notify", Counter())
            if look is not None:
                await self._claim(look)
        self._end_if_stopped()

    def _take_cause(self) -> Cause | None:
        rung, cause = self._bell.is_set(), self._cause
        self._bell.clear()
        self._cause = None
        return (cause or "notify") if rung else None

    async def _claim(self, look: Look) -> None:
        try:
            jobs = await self._store.claim(look.wanted)
        except BaseException:
            self.failed(look)
            raise
        self.claimed(look, jobs)

    # -------------------------------------------------------------- what rides with other statements

    def along(self, ending: Counter[str], mailboxes: Mailboxes) -> Look | None:
        """What to claim in the statement that ends these jobs, by agent; None: there is no reason to look.

        The end of a keyed job is one: it makes the next of its mailbox ready. Whoever gets a look gives it back to `claimed` or
        `failed`.
        """
        if not (mailboxes or self.looks_next):
            return None
        return self._look(self._take_cause() or "more", ending, mailboxes)

    @property
    def looks_next(self) -> bool:
        """Whether there is a reason to look: then the ends of jobs go with a claim."""
        return bool(self._hungry) or self._bell.is_set()

    def offer(self, agent: str) -> Wanted | None:
        """Set a slot aside for a message to this agent that is about to be sent; None: it is to be claimed as any other.

        One that is behind others is, and one whose agent has a limit over all processes.
        """
        known = self._runner.agents.get(agent)
        if known is None or known.limit is not None or self.stopping or agent in self._hungry:
            return None
        agents, total = self._slots.reserve(Counter(), 1, only=agent)
        if total <= 0:
            return None
        self._on_their_way += 1
        return Wanted(self._supervisor, tuple(agents), total, False, self.floors.of([agent]))

    def handed(self, wanted: Wanted, granted_at: float, job: Claimed | None) -> None:
        """Give back what `offer` set aside, and start what was handed over. None: the message is claimed as any other."""
        self._back(wanted, Counter())
        if job is not None:
            self._stats.claimed["sent"] += 1
            self._runner.start([job], granted_at, "sent")
            self.on_claimed(granted_at)
        elif self._hungry and self._slots.has_room():  # a look that came meanwhile had to do without this slot
            self.ring("more")

    def _look(self, cause: Cause, ending: Counter[str], mailboxes: Mailboxes = frozenset()) -> Look | None:
        if self.stopping:
            return None
        agents, total = self._slots.reserve(ending, batch_max)
        if cause != "more":
            self._hungry = set(self._runner.agents)
            self._news += 1
        self._was_full = total <= 0
        if total <= 0:
            return None
        self._on_their_way += 1
        self._first = (self._first + 1) % len(agents)
        agents = agents[self._first :] + agents[: self._first]
        floors = None if cause == "poll" else self.floors.of([policy.name for policy, _ in agents])
        wanted = Wanted(self._supervisor, tuple(agents), total, not self._runner.runs_alone, floors)
        return Look(wanted, cause, time.monotonic(), self._news, ending, mailboxes)

    def failed(self, look: Look) -> None:
        """The database did not answer: what it would have found is still there."""
        self._back(look.wanted, look.ending)
        self.floors.doubt()  # what it had locked, others may have left out
        self.ring(look.cause)

    def claimed(self, look: Look, jobs: Sequence[Claimed]) -> None:
        """Start what was claimed, and note whether there may be more."""
        self._back(look.wanted, look.ending)
        self._looked_at = look.asked_at
        self._stats.claims[look.cause] += 1
        self._stats.claimed[look.cause] += len(jobs)
        if jobs and look.cause == "poll":
            log.warning("claim.found_by_poll", jobs=len(jobs), meaning="a wake-up was lost; please report this")
        self._runner.start(jobs, look.asked_at, look.cause)
        self.floors.seen(jobs)
        filled = len(jobs) == look.wanted.total
        # What the same statement made ready is the youngest of all: there was nothing else for it, so it is no sign of more.
        more = filled and not all((job.agent, job.key) in look.mailboxes for job in jobs)
        outdated = look.news != self._news  # a look that came later had to leave out what this one was promised
        if more:
            self._hungry = set(self._runner.agents)
        elif not (filled or outdated):  # every agent was looked at: those that gave less than was asked have no more
            got = Counter([job.agent for job in jobs])
            self._hungry -= {policy.name for policy, limit in look.wanted.agents if got[policy.name] < limit}
        if (more or outdated) and self._hungry and self._slots.has_room():
            self.ring("more")
        self._was_full = not self._slots.has_room()
        if jobs:
            self.on_claimed(look.asked_at)
        else:
            self.floors.doubt()
        self.on_looked()

    def _back(self, wanted: Wanted, ending: Counter[str]) -> None:
        self._slots.release(wanted, ending)
        self._on_their_way -= 1
        self._end_if_stopped()

    def _end_if_stopped(self) -> None:
        if self.stopping and not self._on_their_way:
            self.ended.set()
