"""The heart: a thread of its own that keeps the leases of long jobs, and watches that the agents' event loop moves.

It has an event loop and a connection of its own, so an agent that blocks the main loop keeps its lease. A job that ends
before its first heartbeat costs nothing here: it only enters and leaves a dictionary. Renewals that fall due together
are one statement.
"""

from __future__ import annotations

import asyncio
import sys
import sysconfig
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import structlog

from agentrt.config import Settings, redact
from agentrt.context import Attempt, in_thread, running
from agentrt.engine.stats import Stats
from agentrt.errors import AgentrtError
from agentrt.store import Store

log = structlog.get_logger("agentrt.heart")
renew_timeout_s = 2.0
_stdlib = sysconfig.get_path("stdlib")


@dataclass(slots=True, eq=False)
class _Lease:
    attempt: Attempt
    beating: bool = False


class Heart:
    """`watch` and `forget` are called by the main loop; all else happens in the thread."""

    def __init__(self, store: Store, stats: Stats, settings: Settings, shortest_lease_s: float) -> None:
        self._store = store.twin(timeout_s=min(renew_timeout_s, shortest_lease_s / 3))
        self._stats = stats
        self._tick_s = min(0.5, shortest_lease_s / 6, settings.stall_s / 2)
        self._stall_s = settings.stall_s
        self._heartbeat_s = settings.heartbeat_s
        self._leases: dict[int, _Lease] = {}  # shared between the threads; each operation on it is atomic
        self._main: asyncio.AbstractEventLoop | None = None
        self._main_thread = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self._stop = asyncio.Event()
        self._due: dict[_Lease, asyncio.Future[bool]] = {}
        self._due_rung = asyncio.Event()
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
        self._leases[attempt.job.id] = _Lease(attempt)

    def forget(self, attempt: Attempt) -> None:
        lease = self._leases.get(attempt.job.id)
        if lease is not None and lease.attempt is attempt:
            del self._leases[attempt.job.id]

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
                for lease in list(self._leases.values()):
                    lease.beating = False
                time.sleep(self._tick_s)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop, self._due_rung, self._due = asyncio.Event(), asyncio.Event(), {}  # they belong to this loop
        try:
            async with asyncio.TaskGroup() as group:
                renewer = group.create_task(self._renew_due(), name="renew")
                while not self._stopping:
                    now = time.monotonic()
                    for lease in list(self._leases.values()):
                        job = lease.attempt.job
                        if not lease.beating and now - (lease.attempt.lease_expires - job.lease_s) > self._every_s(
                            job.lease_s
                        ):
                            lease.beating = True
                            group.create_task(self._beat(lease), name=f"lease-{lease.attempt.job.id}")
                    self._watch_main_loop(now)
                    try:
                        async with asyncio.timeout(self._tick_s):
                            await self._stop.wait()
                    except TimeoutError:
                        pass
                renewer.cancel()
                self._leases.clear()
        finally:
            await self._store.close()

    async def _beat(self, lease: _Lease) -> None:
        """Keep one lease until its job ends, it is refused, or it has run out. A failed beat alone changes nothing."""
        job = lease.attempt.job
        pause_s = 0.0
        while await self._sleep_while_held(lease, pause_s):
            now = time.monotonic()
            if now >= lease.attempt.lease_expires:
                self._lose(lease, f"no heartbeat reached the database for {job.lease_s:g} s")
                return
            kept = await self._renew(lease)
            if kept is False:
                if (
                    not lease.attempt.settled
                ):  # else its end may have been stored meanwhile, and that is what refused it
                    self._lose(lease, "the job was taken back")
                return
            if kept:
                lease.attempt.lease_expires = now + job.lease_s
            pause_s = (
                self._every_s(job.lease_s)
                if kept
                else min(job.lease_s / 10, max(0.05, lease.attempt.lease_expires - time.monotonic()))
            )

    def _every_s(self, lease_s: float) -> float:
        return lease_s / 3 if self._heartbeat_s is None else min(self._heartbeat_s, lease_s / 3)

    async def _sleep_while_held(self, lease: _Lease, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
                return False
        except TimeoutError:
            return self._leases.get(lease.attempt.job.id) is lease

    async def _renew(self, lease: _Lease) -> bool | None:
        """True: kept; False: refused; None: the database did not answer."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._due[lease] = future
        self._due_rung.set()
        try:
            async with asyncio.timeout(max(0.05, lease.attempt.lease_expires - time.monotonic())):
                return await future
        except (TimeoutError, AgentrtError) as error:
            log.warning(
                "lease.beat_failed",
                job_id=lease.attempt.job.id,
                error=str(error) or "no answer",
                lease_left_s=round(lease.attempt.lease_expires - time.monotonic(), 2),
            )
            return None
        finally:
            self._due.pop(lease, None)

    async def _renew_due(self) -> None:
        """Renew what is due in one statement; what falls due meanwhile rides with the next."""
        while True:
            await self._due_rung.wait()
            self._due_rung.clear()
            batch = dict(self._due)
            self._due.clear()
            if not batch:
                continue
            jobs = sorted((lease.attempt.job for lease in batch), key=lambda job: job.id)
            try:
                owned = await self._store.renew([(job.id, job.fence, job.lease_s) for job in jobs])
            except (
                AgentrtError
            ) as error:  # no answer, or a login refused for a moment: a failed beat alone changes nothing
                for future in batch.values():
                    if not future.done():
                        future.set_exception(error)
                continue
            for lease, future in batch.items():
                if not future.done():
                    future.set_result(lease.attempt.job.id in owned)

    def _lose(self, lease: _Lease, why: str) -> None:
        assert self._main is not None
        log.warning("job.losing_lease", job_id=lease.attempt.job.id, agent=lease.attempt.job.agent, why=why)
        if not self._main.is_closed():
            self._main.call_soon_threadsafe(lease.attempt.stop, "lost", why)

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
        elif self._leases and not self._main.is_closed():
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
        attempt = next((lease.attempt for lease in list(self._leases.values()) if lease.attempt.task is task), None)
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
