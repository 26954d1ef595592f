"""The minder: starts N supervisor processes and keeps them. It runs no agents and needs no event loop.

A dead child's leases are released at once; its place is filled again with backoff. Signals reach the children: the first
drains, the second hurries. As PID 1 it also reaps what agents leave behind. A child sees its minder die by the end of a
pipe, and drains.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from uuid import UUID, uuid4

import structlog

from agentrt.model import Retry

log = structlog.get_logger("agentrt.minder")
life_variable = "AGENTRT_LIFE_FD"
ready_variable = "AGENTRT_READY_FD"
identity_variable = "AGENTRT_SUPERVISOR_ID"
number_variable = "AGENTRT_CHILD"
starts_max = 5  # in a row that never became ready
respawn = Retry(base_s=0.2, factor=2, cap_s=5, jitter=0.2)
usage_exit = 2
unreachable_exit = 3
same_signal_s = 0.5  # some senders (timeout(1), a terminal's process group) deliver one signal twice


@dataclass(slots=True)
class _Place:
    """One of the N children, over its successive processes."""

    number: int
    pid: int = 0
    supervisor: UUID = field(default_factory=uuid4)
    life: int = -1
    ready: int = -1
    became_ready: bool = False
    starts_failed: int = 0
    deaths: int = 0
    respawn_at: float | None = 0.0


class Minder:
    """`run()` returns the exit code: 0 when all children drained, 1 when it gave up, 2 or 3 when a child's start says so."""

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], count: int, release: Callable[[UUID], None]
    ) -> None:
        self._command = list(command)
        self._environ = dict(environ)
        self._places = [_Place(number) for number in range(1, count + 1)]
        self._release = release
        self._ever_ready = False
        self._signals = 0
        self._signalled_at = 0.0
        self._code = 0
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    def run(self) -> int:
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)
        while True:
            self._reap()
            if not self._signals and not self._code:
                self._spawn_due()
            elif not any(place.pid for place in self._places):
                return self._code
            self._wait()

    # -------------------------------------------------------------- waiting

    def _wait(self) -> None:
        """Until a signal, a ready child, or the next respawn is due."""
        due = [place.respawn_at for place in self._places if place.respawn_at is not None and not self._signals]
        timeout = max(0.0, min(due) - time.monotonic()) if due else None
        watched = [self._wake_read, *(place.ready for place in self._places if place.ready >= 0)]
        readable, _, _ = select.select(watched, [], [], timeout)
        for place in self._places:
            if place.ready in readable:
                self._became_ready(place)
        if self._wake_read in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 512)

    def _became_ready(self, place: _Place) -> None:
        if os.read(place.ready, 1):
            place.became_ready = self._ever_ready = True
            place.starts_failed = 0
            log.info("child.ready", child=place.number, pid=place.pid)
        os.close(place.ready)
        place.ready = -1

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._signals and now - self._signalled_at < same_signal_s:
            return
        self._signals += 1
        self._signalled_at = now
        log.info(
            "minder.signal",
            signal=signal.Signals(number).name,
            effect="drain" if self._signals == 1 else "hand back at once",
        )
        for place in self._places:
            place.respawn_at = None
            if place.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(place.pid, signal.SIGTERM)

    # -------------------------------------------------------------- children

    def _spawn_due(self) -> None:
        now = time.monotonic()
        for place in self._places:
            if place.pid == 0 and place.respawn_at is not None and place.respawn_at <= now:
                self._spawn(place)

    def _spawn(self, place: _Place) -> None:
        life_read, place.life = os.pipe()
        place.ready, ready_write = os.pipe()
        for inherited in (life_read, ready_write):
            os.set_inheritable(inherited, True)
        place.supervisor = uuid4()
        place.became_ready = False
        place.respawn_at = None
        environ = {
            **self._environ,
            life_variable: str(life_read),
            ready_variable: str(ready_write),
            identity_variable: str(place.supervisor),
            number_variable: str(place.number),
        }
        # A process group of its own: Ctrl-C in a terminal reaches the minder alone, which passes it on once.
        place.pid = os.posix_spawn(
            self._command[0],
            self._command,
            environ,
            setpgroup=0,
            setsigmask=(),
            setsigdef=(signal.SIGTERM, signal.SIGINT),
        )
        os.close(life_read)
        os.close(ready_write)
        if self._signals:  # it came while the child was made, before its pid was known
            with contextlib.suppress(ProcessLookupError):
                os.kill(place.pid, signal.SIGTERM)
        log.info("child.started", child=place.number, pid=place.pid, supervisor=str(place.supervisor))

    def _reap(self) -> None:
        """Collect every ended process, adopted orphans too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            place = next((place for place in self._places if place.pid == pid), None)
            if place is not None:
                self._ended(place, os.waitstatus_to_exitcode(status))

    def _ended(self, place: _Place, code: int) -> None:
        for end in (place.life, place.ready):
            if end >= 0:
                os.close(end)
        place.life = place.ready = -1
        place.pid = 0
        if self._signals or self._code:
            before_its_handlers = code == -signal.SIGTERM and not place.became_ready
            if code != 0 and not before_its_handlers:
                log.warning("child.ended", child=place.number, exit_code=code)
                self._code = self._code or 1
            return
        threading.Thread(target=self._release, args=(place.supervisor,), daemon=True).start()
        place.deaths += 1
        unreachable = code == unreachable_exit and not place.became_ready  # an outage: waited for, once it has worked
        place.starts_failed += not place.became_ready and not unreachable
        hopeless = code == usage_exit or (unreachable and not self._ever_ready)
        if place.starts_failed >= starts_max or (hopeless and not place.became_ready):
            log.error(
                "minder.gives_up",
                child=place.number,
                exit_code=code,
                starts=place.starts_failed,
                meaning="the process ends before it is ready; its own last line says why",
            )
            self._code = code if hopeless else 1
            for other in self._places:
                if other.pid:
                    os.kill(other.pid, signal.SIGTERM)
            return
        delay_s = respawn.delay_s(place.starts_failed or min(place.deaths, 5))
        place.respawn_at = time.monotonic() + delay_s
        log.warning("child.died", child=place.number, exit_code=code, again_in_s=round(delay_s, 2))
