"""One listening connection, kept: rebuilt when it is lost or has gone deaf.

A hint that is missed while nothing listens is made good by looking at the tables: `on_listening` is called after each
(re)LISTEN, when everything that commits from then on is heard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from agentrt.errors import StoreError
from agentrt.model import Retry
from agentrt.store import Heard, Notifier, Store

log = structlog.get_logger("agentrt.listener")
reconnect = Retry(base_s=0.1, factor=2, cap_s=2, jitter=0.5)


class Listener:
    """Run `run()` as a task; `listening` tells whether a connection is up."""

    def __init__(self, store: Store, heard: Heard, on_listening: Callable[[], None]) -> None:
        self._store = store
        self._heard = heard
        self._on_listening = on_listening
        self._notifier: Notifier | None = None
        self._wanted = asyncio.Event()
        self._wanted.set()

    @property
    def connection(self) -> Notifier | None:
        """The connection that listens now; None: there is none."""
        return self._notifier

    @property
    def listening(self) -> bool:
        return self._notifier is not None

    async def run(self) -> None:
        """Listen until cancelled."""
        failures = 0
        while True:
            await self._wanted.wait()
            try:
                self._notifier = await self._store.listen(self._heard)
            except StoreError as error:
                failures += 1
                if failures == 1:
                    log.warning("listener.down", error=str(error))
                await asyncio.sleep(reconnect.delay_s(failures))
                continue
            if failures:
                log.info("listener.up", after_failures=failures)
            failures = 0
            try:
                self._on_listening()
                await self._notifier.lost
                if self._wanted.is_set():
                    log.warning("listener.lost", remedy="reconnecting; the table is looked at once it listens again")
            finally:
                await self._drop()

    async def rebuild(self, reason: str) -> None:
        """The connection is open but hears nothing: throw it away, `run` makes a new one."""
        if self._notifier is not None:
            log.warning("listener.deaf", reason=reason, remedy="reconnecting")
            await self._throw_away(self._notifier)

    async def pause(self) -> None:
        """Listen to nothing until `resume`."""
        self._wanted.clear()
        if self._notifier is not None:
            await self._throw_away(self._notifier)

    def resume(self) -> None:
        self._wanted.set()

    async def _throw_away(self, notifier: Notifier) -> None:
        lost = notifier.lost
        await self._drop()
        if isinstance(lost, asyncio.Future) and not lost.done():
            lost.set_result(None)

    async def _drop(self) -> None:
        notifier, self._notifier = self._notifier, None
        if notifier is not None:
            await notifier.close()
