"""One connection of a measurement: the bare driver, with agentrt's session settings and its errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal, Self

import asyncpg

from agentrt.store.postgres.lane import connect_timeout_s, server_settings, translated
from agentrt.store.sql import in_schema

# A measurement keeps transactions open on purpose; the server ends them with the connection.
_settings = {**server_settings, "idle_in_transaction_session_timeout": "0"}


class Link:
    """Statements are written with `agentrt.` for the schema. The driver prepares each once."""

    def __init__(self, connection: asyncpg.Connection, schema: str) -> None:
        self.connection = connection
        self.schema = schema
        self.statements = 0  # sent so far
        self._texts: dict[str, str] = {}

    @classmethod
    @asynccontextmanager
    async def opened(cls, dsn: str, schema: str) -> AsyncIterator[Self]:
        """A connection while the block runs. Raises what `translated` makes of the driver's errors."""
        with translated("connect"):
            connection = await asyncpg.connect(dsn, timeout=connect_timeout_s, server_settings=_settings)
        try:
            yield cls(connection, schema)
        finally:
            connection.terminate()  # nothing is owed to it, whatever state it is in

    @property
    def pid(self) -> int:
        """Of the server's process behind it."""
        return self.connection.get_server_pid()

    async def rows(self, text: str, *values: Any) -> list[asyncpg.Record]:
        self.statements += 1
        with translated("bench"):
            found: list[asyncpg.Record] = await self.connection.fetch(self._text(text), *values)
            return found

    async def value(self, text: str, *values: Any) -> Any:
        self.statements += 1
        with translated("bench"):
            return await self.connection.fetchval(self._text(text), *values)

    async def script(self, text: str) -> None:
        """Several statements, without values."""
        with translated("bench"):
            await self.connection.execute(self._text(text))

    @asynccontextmanager
    async def transaction(
        self, isolation: Literal["repeatable_read"] | None = None
    ) -> AsyncIterator[asyncpg.Connection]:
        """The connection inside a transaction, committed when the block ends; after an error it is of no more use."""
        transaction = self.connection.transaction(isolation=isolation)
        with translated("begin"):
            await transaction.start()
        yield self.connection
        with translated("commit"):
            await transaction.commit()

    def _text(self, text: str) -> str:
        known = self._texts.get(text)
        if known is None:
            known = self._texts[text] = in_schema(text, self.schema)
        return known
