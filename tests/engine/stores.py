"""Stores for tests of the engine: PostgreSQL's, with something that befalls an answer."""

from __future__ import annotations

import asyncio
from uuid import UUID

from agentrt.model import SweepReport
from agentrt.store.postgres import PostgresStore


class NoLooksBehind(PostgresStore):
    """A store in which a start finds nothing by itself: such a look would claim what the test is about."""

    async def horizon(self) -> tuple[int, int]:
        """Never answered."""
        await asyncio.Event().wait()
        raise AssertionError


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
