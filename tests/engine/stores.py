"""Stores for tests of the engine: PostgreSQL's, with something that befalls an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from uuid import UUID

from agentrt.errors import StoreUnavailable
from agentrt.model import SweepReport
from agentrt.store.postgres import PostgresStore


class NoLooksBehind(PostgresStore):
    """A store in which a start finds nothing by itself: such a look would claim what the test is about."""

    async def horizon(self) -> tuple[int, int]:
        """Never answered."""
        await asyncio.Event().wait()
        raise AssertionError


class DeafToCancels(PostgresStore):
    """A store that loses its connection when it is first asked who shall be cancelled."""

    asked = 0

    async def cancel_requests(self, job_ids: Collection[int]) -> list[tuple[int, int, str]]:
        self.asked += 1
        if self.asked == 1:
            raise StoreUnavailable("cancel_requests: the connection was lost")
        return await super().cancel_requests(job_ids)


class DeafToFloors(PostgresStore):
    """A store that loses its connection when it is first asked where the ready jobs begin."""

    asked = 0

    async def floors(self, agents: Sequence[str]) -> list[int | None]:
        self.asked += 1
        if self.asked == 1:
            raise StoreUnavailable("floors: the connection was lost")
        return await super().floors(agents)


class LateSweep(PostgresStore):
    """A store whose first sweep has looked, and answers when it is told to."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.looked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def sweep(self, limit: int, dead: UUID | None = None) -> SweepReport:
        report = await super().sweep(limit, dead)
        self.looked.set()
        await self.may_answer.wait()
        return report
