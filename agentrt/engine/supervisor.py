"""The supervisor: one process, the parent of listener, claimer, runner, committer, heart and janitor.

A loop that dies is restarted with backoff inside a budget; beyond it the process ends and says why. An outage of the
database is a state (`degraded`), not a death: the loops wait it out.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import structlog

from agentrt.agent import Agent
from agentrt.client import Client
from agentrt.config import Settings, redact
from agentrt.context import attempt_of
from agentrt.durable.branch import TaskFactory
from agentrt.engine import outage
from agentrt.engine.answers import Answers
from agentrt.engine.claimer import Claimer
from agentrt.engine.committer import Committer
from agentrt.engine.doorbell import Doorbell
from agentrt.engine.handover import HandOver
from agentrt.engine.heart import Heart
from agentrt.engine.janitor import Janitor
from agentrt.engine.outage import Outage
from agentrt.engine.runner import Runner
from agentrt.engine.stats import Stats
from agentrt.errors import AgentrtError, StoreUnavailable, UsageError
from agentrt.model import Beat, Retry
from agentrt.store import Store
from agentrt.store.listener import Listener

log = structlog.get_logger("agentrt.supervisor")
restarts_max = 5
restarts_within_s = 60.0
hand_back_s = 5.0
hurried_hand_back_s = 1.0


class SupervisorFailed(AgentrtError):
    """A part of the supervisor could not be kept running; the text says which, and its last error."""


class _Stopped(Exception):
    """Every job is finished or handed back."""


class Supervisor:
    """`run()` returns after `drain()` has let the jobs finish, or raises `SupervisorFailed`."""

    def __init__(
        self, agents: Mapping[str, Agent[..., Any]], store: Store, settings: Settings, supervisor_id: UUID | None = None
    ) -> None:
        if not agents:
            raise UsageError("There is no agent to run. Name a module that declares one with @agent.")
        self.id = supervisor_id or uuid4()
        self.stats = Stats()
        self.client = Client(store)
        self.on_ready: Callable[[], None] = lambda: None
        self.on_left_behind: Callable[[], None] = lambda: None  # attempts that will not end: run() cannot return
        self.ready = False
        self._agents = dict(agents)
        self._store = store
        self._settings = settings
        self._draining = asyncio.Event()
        self._hurry = asyncio.Event()
        self._idle = asyncio.Event()
        self._outage = Outage()
        self._committer = Committer(store, self.stats)
        shortest = min([settings.lease_s, *(a.lease_s for a in agents.values() if a.lease_s is not None)])
        self._heart = Heart(store, self.stats, settings, shortest)
        self._listener = Listener(store, self._heard, self._listening)
        self.client.listening = lambda: self._listener.listening
        self._beat_at = 0.0
        self._failed_loops: dict[str, str] = {}

    # -------------------------------------------------------------- for its user

    def drain(self) -> None:
        """Stop claiming and let running jobs finish; called again: hand them back at once."""
        if self._draining.is_set():
            self._hurry.set()
        self._draining.set()

    def health(self) -> dict[str, Any]:
        """What `/readyz` and the tests ask. `ok`: database reachable, listener up, loops alive."""
        silent_s = time.monotonic() - self._beat_at
        checks = {
            "database": not self._outage.lasts and silent_s < 3 * self._settings.beat_s,
            "listener": self._listener.listening or (self.ready and self._doorbell.stands_by),
            "heart": self._heart.alive,
            "loops": not self._failed_loops,
            "accepting": not self._draining.is_set(),
        }
        return {"ok": self.ready and all(checks.values()), **checks, "failed_loops": dict(self._failed_loops)}

    def clock_moved(self, seconds: float) -> None:
        """The database's time was set ahead (by a test): look at all that was timed by it."""
        for attempt in list(self._runner.attempts.values()):
            attempt.clock_moved(seconds)
        self._janitor.due_bell.ring()
        self._janitor.beat_bell.ring()

    @property
    def slots(self) -> int:
        return self._settings.slots

    @property
    def running_jobs(self) -> int:
        return len(self._runner.attempts) if self.ready else 0

    # -------------------------------------------------------------- life

    async def run(self) -> None:
        if not await self._database_is_up():
            return
        TaskFactory.install(asyncio.get_running_loop(), attempt_of)
        try:
            async with asyncio.TaskGroup() as group:
                self._build(group)
                self._heart.start()
                for name, work in self._loops():
                    group.create_task(self._keep(name, work), name=name)
                self.ready = True
                log.info(
                    "supervisor.started",
                    supervisor=str(self.id),
                    agents=sorted(self._agents),
                    slots=self._settings.slots,
                )
                self.on_ready()
                await self._draining.wait()
                await self._drain()
                raise _Stopped
        except* _Stopped:
            pass
        finally:
            await self._heart.close()
        log.info("supervisor.stopped", **self.stats.as_dict())

    def _build(self, group: asyncio.TaskGroup) -> None:
        """Make the parts that belong to the running task group, and join them."""
        self._runner = Runner(
            self._agents, self._settings, self._store, self.client, self._committer, self._heart, group
        )
        self._answers = Answers(self._store, self._runner.attempts)
        self._claimer = Claimer(self._store, self._runner, self.stats, self.id, self._settings.poll_s)
        self._janitor = Janitor(
            self._store, self._settings, self._runner, self._listener, self.stats, self.id, self._claimer.ring
        )
        self._committer.on_stored = self._runner.stored
        self._committer.claims = self._claimer
        self._runner.hand_over = HandOver(self._store, self._runner, self._claimer, self._committer)
        self._runner.slots.on_free = self._slot_freed
        self._runner.on_alone_ended = self._claimer.alone_ended
        self._runner.on_idle = self._idle.set
        self._runner.on_unheard = self._answers.look_for
        self._claimer.on_claimed = self._janitor.claimed
        self._doorbell = Doorbell(self._store, self.id, self._claimer, self._listener, self.stats)
        self._doorbell.on_loud = self._janitor.work_seen
        self._doorbell.on_round = self._janitor.look_around
        self._claimer.on_looked = self._doorbell.changed
        self._claimer.floors.on_found = lambda: self._claimer.ring("more")
        self._janitor.on_beat = self._beaten
        self._outage.on_knock = self._janitor.knock

    def _loops(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        return [
            ("listener", self._listener.run),
            ("claimer", self._claimer.run),
            *(("committer", self._committer.run) for _ in range(self._committer.loops)),
            ("floors", self._claimer.floors.run),
            ("doorbell", self._doorbell.run),
            ("waits", self.client.run_waits),
            ("due", self._janitor.due),
            ("sweep", self._janitor.sweep),
            ("beat", self._janitor.beat),
            ("days", self._janitor.days),
            ("prune", self._janitor.prune),
            ("cancels", self._janitor.cancels),
            ("answers", self._answers.run),
        ]

    async def _keep(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run a loop again when it dies. Outages do not count; anything else does, within a budget."""
        outages = 0
        deaths: deque[float] = deque(maxlen=restarts_max)
        while True:
            started = time.monotonic()
            try:
                await work()
                return
            except StoreUnavailable as error:
                self._outage.met(str(error))
                outages = 1 if time.monotonic() - started > outage.pause.cap_s * 2 else outages + 1
                await self._outage.sit_out(outages, knocks=name == "beat")
            except (
                Exception
            ) as error:  # the parent of the loops: whatever a loop dies of is reported and mended or fatal
                self._failed_loops[name] = f"{type(error).__name__}: {redact(str(error))}"
                self.stats.restarts[name] += 1
                now = time.monotonic()
                deaths.append(now)
                log.exception("loop.died", loop=name, error=self._failed_loops[name])
                if len(deaths) == restarts_max and now - deaths[0] < restarts_within_s:
                    raise SupervisorFailed(
                        f"The {name} loop died {restarts_max} times within {restarts_within_s:g} s, last of:"
                        f" {self._failed_loops[name]}"
                    ) from None
                await asyncio.sleep(Retry(base_s=1, factor=2, cap_s=15, jitter=0.1).delay_s(len(deaths)))
                self._failed_loops.pop(name, None)

    async def _database_is_up(self) -> bool:
        """Make or check the tables; a database that is not up yet is waited for, and after `start_s` given up (raises).

        False: told to stop meanwhile.
        """
        deadline = time.monotonic() + self._settings.start_s
        failures = 0
        while not self._draining.is_set():
            try:
                await self._store.prepare()
                return True
            except StoreUnavailable as error:
                failures += 1
                if time.monotonic() >= deadline:
                    raise StoreUnavailable(f"{error} Gave up after {self._settings.start_s:g} s.") from None
                if failures == 1:
                    log.warning("database.waiting", error=str(error), at_most_s=self._settings.start_s)
                with suppress(TimeoutError):
                    async with asyncio.timeout(outage.pause.delay_s(failures)):
                        await self._draining.wait()
        return False

    def _slot_freed(self, agent: str) -> None:
        self._claimer.slot_freed(agent)
        self._doorbell.changed()

    def _beaten(self, seen: Beat) -> None:
        self._beat_at = time.monotonic()
        self._outage.over()
        self._committer.overlaps = not seen.ahead
        self._doorbell.beaten(seen, idle=not self._runner.attempts)
        if seen.ready:
            self._claimer.missed()

    # -------------------------------------------------------------- what the listener hears

    def _heard(self, channel: str, payload: str) -> None:
        if not self.ready:
            return
        if channel == "ready":
            self._claimer.ring("notify")
            self._doorbell.heard()
            self._janitor.work_seen()
        elif channel == "due":
            self._janitor.due_bell.ring()
        elif channel == "done":
            self.client.ring(int(payload))
        elif channel == "answer":
            self._answers.ring(int(payload))
        elif channel == "cancel":
            self._janitor.heard_cancel()
        elif channel == "bell":
            self._janitor.heard_bell(payload)

    def _listening(self) -> None:
        """From here on every commit is heard; what came before is looked for once."""
        self._claimer.ring("notify")
        self._janitor.work_seen()
        self._janitor.due_bell.ring()
        self._janitor.heard_cancel()
        self._answers.ring_all()
        self.client.ring()

    # -------------------------------------------------------------- the end

    async def _drain(self) -> None:
        log.info(
            "supervisor.draining",
            running=len(self._runner.attempts),
            at_most_s=self._settings.drain_s,
            again="a second signal hands the jobs back at once",
        )
        self._janitor.state = "draining"
        self._claimer.stop()
        with suppress(TimeoutError):  # what a claim on its way still brings is run or handed back like the rest
            async with asyncio.timeout(max(self._settings.drain_s, hand_back_s)):
                await self._claimer.ended.wait()
        for attempt in list(self._runner.attempts.values()):
            attempt.leave_memory()  # what waits for hours is not waited for here
        await self._until_idle(self._settings.drain_s, hurry=True)
        left = list(self._runner.attempts.values())
        if left:
            log.warning("supervisor.hands_back", jobs=[attempt.job.id for attempt in left])
            for attempt in left:
                attempt.stop("shutdown")
            await self._until_idle(hurried_hand_back_s if self._hurry.is_set() else hand_back_s, hurry=False)
        if self._runner.attempts:
            log.error(
                "supervisor.left_behind",
                jobs=sorted(self._runner.attempts),
                meaning="they do not react to their cancellation; the sweep takes them back when their leases end",
            )
            self.on_left_behind()
        try:
            async with asyncio.timeout(hand_back_s):
                await self._store.leave(self.id)
        except (StoreUnavailable, TimeoutError):
            log.warning("supervisor.not_signed_off", meaning="the database does not answer")

    async def _until_idle(self, seconds: float, *, hurry: bool) -> None:
        """Wait until no attempt is left and every outcome is stored; at most `seconds`, or until told to hurry."""
        hurried = asyncio.ensure_future(self._hurry.wait())
        try:
            async with asyncio.timeout(seconds):
                while self._runner.attempts:
                    self._idle.clear()
                    idle = asyncio.ensure_future(self._idle.wait())
                    await asyncio.wait([idle, hurried] if hurry else [idle], return_when=asyncio.FIRST_COMPLETED)
                    idle.cancel()
                    if hurry and self._hurry.is_set():
                        return
        except TimeoutError:
            pass
        finally:
            hurried.cancel()
