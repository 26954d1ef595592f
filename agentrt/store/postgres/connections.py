"""What every verb on PostgreSQL uses: the statements by name, and the connections they run on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from weakref import WeakValueDictionary

import asyncpg

from agentrt.errors import StoreUnavailable
from agentrt.model import JobRow
from agentrt.store.postgres.arrays import parameters
from agentrt.store.postgres.lane import Lanes, command_timeout_s, connect, connection_errors, translated
from agentrt.store.sql import statements

Name = tuple[str, ...]  # of what a statement locks until it commits: a mailbox, a dedup key, a budget
lanes_max = 8
mailbox_lanes_max = 4
held_after_s = 0.1  # far longer than a statement takes that nobody holds up


class _Turn(asyncio.Lock):
    """One statement at a time, under way since then (on the loop's clock)."""

    since = 0.0


class Connections:
    """Lanes, opened when they are used: an idle process keeps one. And spare connections for transactions.

    What may have to wait for a mailbox that somebody's transaction holds has lanes of its own, so nothing else waits behind it.
    """

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
        self._mailbox_lanes = Lanes(dsn, mailbox_lanes_max, timeout_s)
        self._turns: WeakValueDictionary[Name, _Turn] = WeakValueDictionary()
        self._spare: list[asyncpg.Connection] = []  # for transactions

    async def close(self) -> None:
        await self._lanes.close()
        await self._mailbox_lanes.close()
        while self._spare:
            self._spare.pop().terminate()
        if self._on_close is not None:
            await asyncio.to_thread(self._on_close)

    @property
    def statements(self) -> int:
        """How many statements were sent since it was made, transactions of agents not counted."""
        return self._lanes.statements + self._mailbox_lanes.statements

    async def _run(
        self, name: str, connection: Any, columns: Mapping[str, Any], waits_for: Collection[Name] = ()
    ) -> list[asyncpg.Record]:
        """A statement with its parameters by name; on the caller's connection, inside its transaction, when one is given.

        `waits_for`: what it locks (see `locked_by`). One statement at a time waits for each.
        """
        statement = self._sql[name]
        values = [columns[parameter] for parameter in statement.names]
        if connection is None and waits_for:
            async with self._turn_of(waits_for):
                return await self._mailbox_lanes.fetch(statement, *values)
        if connection is None:
            return await self._lanes.fetch(statement, *values)
        with translated(name):
            rows: list[asyncpg.Record] = await connection.fetch(statement.text, *parameters(values))
            return rows

    @asynccontextmanager
    async def _turn_of(self, names: Collection[Name]) -> AsyncIterator[None]:
        """Queue in this process before the database: who waits for a mailbox there holds a connection."""
        async with AsyncExitStack() as stack:
            for name in sorted(names):
                turn = self._turns.setdefault(name, _Turn())
                await stack.enter_async_context(turn)
                turn.since = asyncio.get_running_loop().time()
            yield

    def _held(self, name: Name) -> bool:
        """Whether somebody's transaction holds this: the statement whose turn it is has been under way for long."""
        turn = self._turns.get(name)
        return turn is not None and turn.locked() and asyncio.get_running_loop().time() - turn.since > held_after_s

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
