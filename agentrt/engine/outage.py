"""An outage of the database: a state of the process, not a death. The loops sit it out while one of them knocks for all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import structlog

from agentrt.model import Retry

log = structlog.get_logger("agentrt.outage")
pause = Retry(base_s=0.1, factor=2, cap_s=2, jitter=0.5)
knock_alone_s = 10.0  # what knocks for all may be held up by something else


class Outage:
    """`met` and `over` are called by those who learn of it; a loop that met it calls `sit_out` before it goes on."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._answered = asyncio.Event()
        self.on_knock: Callable[[], None] = lambda: None

    @property
    def lasts(self) -> bool:
        return self._since is not None

    def met(self, error: str) -> None:
        self._answered.clear()
        if self._since is None:
            self._since = time.monotonic()
            log.warning("database.lost", error=error, meaning="running jobs go on while their leases last")

    def over(self) -> None:
        """The database has answered."""
        self._answered.set()
        if self._since is not None:
            log.warning("database.back", after_s=round(time.monotonic() - self._since, 1))
            self._since = None

    async def sit_out(self, failures: int, *, knocks: bool) -> None:
        """Wait a moment after so many failures in a row. Who does not knock for all then waits for the answer to who does."""
        await asyncio.sleep(pause.delay_s(failures))
        if not (knocks or self._answered.is_set()):
            self.on_knock()
            with suppress(TimeoutError):
                async with asyncio.timeout(knock_alone_s):
                    await self._answered.wait()
