"""The heart: a thread of its own that keeps the leases of long jobs, and watches that the agents' event loop moves.

It has an event loop and a connection of its own, so an agent that blocks the main loop keeps its lease. A job that ends
before its first heartbeat costs nothing here: it only enters and leaves a dictionary. Renewals that fall due together
are one statement.
"""

from __future__ import annotations

import asyncio
import math
import sys
import sysconfig
import threading
import time
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any

import structlog

from agentrt.calls import in_thread
from agentrt.config import Settings, redact
from agentrt.context import Attempt, running
from agentrt.engine.stats import Stats
from agentrt.errors import AgentrtError
from agentrt.store import Store

log = structlog.get_logger("agentrt.heart")
renew_timeout_s = 2.0
renew_max = 2_000  # leases in one statement
_stdlib = sysconfig.get_path("stdlib")


class Heart:
    """`watch` and `forget` are called by the main loop; all else happens in the thread."""

    def __init__(self, store: Store, stats: Stats, settings: Settings, shortest_lease_s: float) -> None:
        self._store = store.twin(timeout_s=min(renew_timeout_s, shortest_lease_s / 3))
        self._stats = stats
        self._tick_s = min(0.5, shortest_lease_s / 6, settings.stall_s / 2)
        self._stall_s = settings.stall_s
        self._heartbeat_s = settings.heartbeat_s
        self._attempts: dict[int, Attempt] = {}  # shared between the threads; each operation on it is atomic
        self._main: asyncio.AbstractEventLoop | None = None
        self._main_thread = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self._stop = asyncio.Event()
        self._rung = asyncio.Event()
        self._due: list[Attempt] = []
        self._moved_at = 0.0
        self._asked = False
        self._stalled = False
        self._thread: threading.Thread | None = None

    # -------------------------------------------------------------- called by the main loop

    def start(self) -> None:
        self._main = asyncio.get_running_loop()
        self._main_thread = threading.get_ident()
        self._thread = threading.Thread(target=self._run_thread, name="agentrt-heart", daemon=True)
        self._thread.start()

    def watch(self, attempt: Attempt) -> None:
        job = attempt.job
        attempt.renew_at = attempt.lease_expires - job.lease_s + self._every_s(job.lease_s)
        self._attempts[job.id] = attempt

    def forget(self, attempt: Attempt) -> None:
        job_id = attempt.job.id
        if self._attempts.get(job_id) is attempt:
            del self._attempts[job_id]

    async def close(self) -> None:
        loop, thread = self._loop, self._thread
        self._stopping = True
        if loop is not None and thread is not None and thread.is_alive():
            with suppress(RuntimeError):  # its loop has just ended by itself
                loop.call_soon_threadsafe(self._stop.set)
            await in_thread(partial(thread.join, renew_timeout_s + 1))

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    # -------------------------------------------------------------- the thread

    def _run_thread(self) -> None:
        """Run until stopped; whatever it dies of, it begins again: without it every lease of the process is lost."""
        while not self._stopping:
            try:
                asyncio.run(self._run())
            except Exception as error:  # as said: reported, and begun again
                log.exception("heart.died", error=f"{type(error).__name__}: {redact(str(error))}")
                self._stats.restarts["heart"] += 1
                for attempt in list(self._attempts.values()):
                    attempt.renew_at = 0.0
                self._due = []
                time.sleep(self._tick_s)

    async def _run(self) -> None:
        self._stop, self._rung = asyncio.Event(), asyncio.Event()  # they belong to this loop
        self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as group:
                renewer = group.create_task(self._renew_due(), name="renew")
                while not self._stopping:
                    now = time.monotonic()
                    self._look_at_leases(now)
                    self._watch_main_loop(now)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._tick_s):
                            await self._stop.wait()
                renewer.cancel()
                self._attempts.clear()
        finally:
            await self._store.close()

    def _look_at_leases(self, now: float) -> None:
        """One pass over all: a task for each would cost more than the leases themselves when thousands of jobs wait."""
        for attempt in list(self._attempts.values()):
            if now >= attempt.lease_expires:
                self._lose(attempt, f"no heartbeat reached the database for {attempt.job.lease_s:g} s")
            elif now >= attempt.renew_at:
                self._due.append(attempt)
                attempt.renew_at = math.inf  # until it is known what came of it
        if self._due:
            self._rung.set()

    def _every_s(self, lease_s: float) -> float:
        return lease_s / 3 if self._heartbeat_s is None else min(self._heartbeat_s, lease_s / 3)

    async def _renew_due(self) -> None:
        """Renew what is due in one statement; what falls due meanwhile rides with the next."""
        while True:
            await self._rung.wait()
            self._rung.clear()
            while self._due:
                batch, self._due = self._due[:renew_max], self._due[renew_max:]
                await self._renew([attempt for attempt in batch if self._holds(attempt)])

    async def _renew(self, batch: list[Attempt]) -> None:
        if not batch:
            return
        asked_at = time.monotonic()  # before the statement: our idea of the lease must not outlast the database's
        batch.sort(key=lambda attempt: attempt.job.id)
        jobs = [attempt.job for attempt in batch]
        try:
            owned = await self._store.renew([(job.id, job.fence, job.lease_s) for job in jobs])
        except AgentrtError as error:  # no answer, or a login refused for a moment: a failed beat alone changes nothing
            for attempt in filter(self._holds, batch):
                self._beat_failed(attempt, str(error) or "no answer")
            return
        for attempt in batch:
            if attempt.job.id in owned:
                attempt.lease_expires = asked_at + attempt.job.lease_s
                attempt.renew_at = asked_at + self._every_s(attempt.job.lease_s)
            elif not attempt.settled:  # else its end may have been stored meanwhile, and that is what refused it
                self._lose(attempt, "the job was taken back")

    def _beat_failed(self, attempt: Attempt, error: str) -> None:
        now = time.monotonic()
        left_s = attempt.lease_expires - now
        attempt.renew_at = now + min(attempt.job.lease_s / 10, max(0.05, left_s))
        log.warning("lease.beat_failed", job_id=attempt.job.id, error=error, lease_left_s=round(left_s, 2))

    def _holds(self, attempt: Attempt) -> bool:
        return self._attempts.get(attempt.job.id) is attempt

    def _lose(self, attempt: Attempt, why: str) -> None:
        """Nobody renews it any more; the main loop cancels its coroutine."""
        assert self._main is not None
        attempt.renew_at = math.inf
        if self._holds(attempt):
            self._attempts.pop(attempt.job.id, None)  # the main loop may have just removed it
        log.warning("job.losing_lease", job_id=attempt.job.id, agent=attempt.job.agent, why=why)
        if not self._main.is_closed():
            self._main.call_soon_threadsafe(attempt.stop, "lost", why)

    # -------------------------------------------------------------- the watch on the main loop

    def _watch_main_loop(self, now: float) -> None:
        """Ask the main loop to move; when it has not within `stall_s`, say once who blocks it, and where."""
        assert self._main is not None
        if self._asked:
            if not self._stalled and now - self._moved_at > self._stall_s:
                self._stalled = True
                self._stats.stalls += 1
                log.error(
                    "loop.stalled",
                    stall_s=round(now - self._moved_at, 1),
                    **self._blocker(),
                    remedy="move the blocking call into a step or agent that is a plain function: it runs in a thread",
                )
        elif self._attempts and not self._main.is_closed():
            self._asked = True
            self._moved_at = now
            self._main.call_soon_threadsafe(self._moved)

    def _moved(self) -> None:
        if self._stalled:
            log.warning("loop.moves_again", after_s=round(time.monotonic() - self._moved_at, 1))
        self._asked = False
        self._stalled = False

    def _blocker(self) -> dict[str, Any]:
        """The agent whose task holds the main loop, and the innermost line of its module on the stack."""
        frame = sys._current_frames().get(self._main_thread)
        try:
            task = asyncio.current_task(self._main)
        except RuntimeError:
            task = None
        attempt = next((one for one in list(self._attempts.values()) if one.task is task), None)
        if attempt is None and task is not None and hasattr(task, "get_context"):  # a task that the agent made (3.12)
            attempt = task.get_context().get(running)
        where = _innermost_user_frame(frame)
        return {
            "job_id": attempt.job.id if attempt else None,
            "agent": attempt.job.agent if attempt else None,
            "file": where.f_code.co_filename if where else None,
            "line": where.f_lineno if where else None,
        }


def _innermost_user_frame(frame: FrameType | None) -> FrameType | None:
    """The deepest frame that belongs neither to the standard library nor to an installed package; else the deepest."""
    innermost = frame
    while frame is not None:
        name = frame.f_code.co_filename
        if "/site-packages/" not in name and not name.startswith((_stdlib, "<frozen")):
            return frame
        frame = frame.f_back
    return innermost
