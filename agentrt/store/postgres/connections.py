"""What every verb on PostgreSQL uses: the statements by name, and the connections they run on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from agentrt.errors import StoreUnavailable
from agentrt.model import JobRow
from agentrt.store.postgres.lane import Lanes, command_timeout_s, connect, connection_errors, translated
from agentrt.store.sql import statements

lanes_max = 8


class Connections:
    """Up to eight lanes, opened when they are used: an idle process keeps one. And spare connections for transactions."""

    def __init__(
        self,
        dsn: str,
        schema: str = "agentrt",
        on_close: Callable[[], None] | None = None,
        timeout_s: float = command_timeout_s,
    ) -> None:
        self.dsn = dsn
        self.schema = schema
        self._on_close = on_close
        self._sql = statements("postgres.sql", schema)
        self._lanes = Lanes(dsn, lanes_max, timeout_s)
        self._spare: list[asyncpg.Connection] = []  # for transactions

    async def close(self) -> None:
        await self._lanes.close()
        while self._spare:
            self._spare.pop().terminate()
        if self._on_close is not None:
            await asyncio.to_thread(self._on_close)

    @property
    def statements(self) -> int:
        """How many statements were sent since it was made, transactions of agents not counted."""
        return self._lanes.statements

    async def _run(self, name: str, connection: Any, columns: Mapping[str, Any]) -> list[asyncpg.Record]:
        """A statement with its parameters by name; on the caller's connection, inside its transaction, when one is given."""
        statement = self._sql[name]
        values = [columns[parameter] for parameter in statement.names]
        if connection is None:
            return await self._lanes.fetch(statement, *values)
        with translated(name):
            rows: list[asyncpg.Record] = await connection.fetch(statement.text, *values)
            return rows

    async def _rows(self, name: str, *values: Any) -> list[JobRow]:
        return [dict(row) for row in await self._lanes.fetch(self._sql[name], *values)]

    async def _value(self, name: str, *values: Any) -> str | None:
        (row,) = await self._lanes.fetch(self._sql[name], *values)
        value: str | None = row[0]
        return value

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[asyncpg.Connection]:
        """A connection inside a transaction, committed when the block ends and rolled back when it raises."""
        connection = self._spare.pop() if self._spare else await connect(self.dsn)
        transaction = connection.transaction()
        try:
            with translated("begin"):
                await transaction.start()
            yield connection
            with translated("commit"):
                await transaction.commit()
        except BaseException as error:
            lost = connection.is_closed() and isinstance(error, connection_errors)
            connection.terminate()  # rolls back, whatever state the link and the statement on it are in
            if lost:
                raise StoreUnavailable(f"transaction: the database cannot be reached ({error}).") from None
            raise
        self._spare.append(connection)
