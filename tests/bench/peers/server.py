"""The one PostgreSQL server of a run, and the machine's processors: what the measured work costs them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg
import psutil

from agentrt.store.postgres.throwaway import on_server
from tests.bench.peers.probe import now


def cpu_s(pid: int) -> float:
    """Processor seconds of a process, those below it, and those of them that have ended."""
    total = 0.0
    try:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            try:
                total += sum(process.cpu_times()[:4])
            except psutil.NoSuchProcess:  # its parent has its time by the next look
                continue
    except psutil.NoSuchProcess:
        pass
    return total


class Server:
    """A superuser's connection to a server on this machine."""

    def __init__(self, dsn: str, connection: asyncpg.Connection) -> None:
        self._dsn = dsn
        self._connection = connection
        self.pid = 0
        self.version = ""

    @classmethod
    @asynccontextmanager
    async def open(cls, dsn: str) -> AsyncIterator[Server]:
        connection = await asyncpg.connect(dsn)
        try:
            server = cls(dsn, connection)
            server.version = (await connection.fetchval("show server_version")).split()[0]
            server.pid = int(await connection.fetchval("select split_part(pg_read_file('postmaster.pid'), chr(10), 1)"))
            yield server
        finally:
            await connection.close()

    async def fresh(self, database: str) -> str:
        """An empty database of this name; returns its address."""
        await self.drop(database)
        await self._connection.execute(f'create database "{database}"')
        return on_server(self._dsn, database)

    async def drop(self, database: str) -> None:
        await self._connection.execute(f'drop database if exists "{database}" with (force)')

    async def checkpoint(self) -> None:
        """Before a measurement, so that none pays for the one before it."""
        await self._connection.execute("checkpoint")

    async def wal_bytes(self) -> int:
        return int(await self._connection.fetchval("select pg_current_wal_lsn() - '0/0'"))

    async def transactions(self, database: str) -> int:
        """Committed and rolled back; those of connections that are open may be a second late."""
        return int(
            await self._connection.fetchval(
                "select xact_commit + xact_rollback from pg_stat_database where datname = $1", database
            )
        )

    async def backends(self, database: str) -> list[int]:
        rows = await self._connection.fetch("select pid from pg_stat_activity where datname = $1", database)
        return [row["pid"] for row in rows]


@dataclass(frozen=True, slots=True)
class Busy:
    """A moment, and the processor seconds used until then: by all, and by this run and its server."""

    at: float
    all_s: float
    own_s: float

    @classmethod
    def look(cls, server: Server) -> Busy:
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        return cls(now(), sum(times[:8]) - idle, cpu_s(os.getpid()) + cpu_s(server.pid))

    def others_until(self, later: Busy) -> float:
        """Cores that anything else used meanwhile: over 0.1 or so, the numbers are not to be trusted."""
        used = (later.all_s - self.all_s) - (later.own_s - self.own_s)
        return max(0.0, round(used / max(0.1, later.at - self.at), 2))
