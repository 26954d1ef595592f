"""A LISTEN connection: hands on what it hears, and says when it is gone."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from agentrt.store import Heard
from agentrt.store.postgres.lane import connect, translated

channels = ("ready", "due", "done", "answer", "cancel", "bell")


class PostgresNotifier:
    """Listens on the schema's channels until it is closed or lost. Never opens a transaction."""

    def __init__(self, connection: asyncpg.Connection, schema: str, heard: Heard) -> None:
        self._connection = connection
        self._schema = schema
        self._heard = heard
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, dsn: str, schema: str, heard: Heard) -> PostgresNotifier:
        """LISTEN is in force when this returns: what commits afterwards is heard."""
        connection = await connect(dsn)
        notifier = cls(connection, schema, heard)
        connection.add_termination_listener(notifier._terminated)
        with translated("listen"):
            try:
                for channel in channels:
                    await connection.add_listener(f"{schema}.{channel}", notifier._notified)
            except BaseException:
                connection.terminate()
                raise
        return notifier

    def _notified(self, _connection: Any, _pid: int, channel: str, payload: object) -> None:
        self._heard(channel.removeprefix(f"{self._schema}."), str(payload))

    def _terminated(self, _connection: Any) -> None:
        if not self.lost.done():
            self.lost.set_result(None)

    async def close(self) -> None:
        """End at once: nothing is owed to a listening session, and a half-open one would not answer."""
        self._connection.remove_termination_listener(self._terminated)
        self._connection.terminate()
