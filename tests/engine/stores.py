"""Stores for tests of the engine: PostgreSQL's, with something that befalls an answer."""

from __future__ import annotations

import asyncio

from agentrt.store.postgres import PostgresStore


class NoLooksBehind(PostgresStore):
    """A store in which a start finds nothing by itself: such a look would claim what the test is about."""

    async def horizon(self) -> tuple[int, int]:
        """Never answered."""
        await asyncio.Event().wait()
        raise AssertionError
