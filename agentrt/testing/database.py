"""A throwaway database: on the server that AGENTRT_TEST_DATABASE_URL names, else on an embedded one of this process."""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path

from agentrt.store.postgres import PostgresStore
from agentrt.store.postgres.throwaway import fresh_database

server_variable = "AGENTRT_TEST_DATABASE_URL"


@asynccontextmanager
async def throwaway_database() -> AsyncIterator[str]:
    """The address of a fresh database with agentrt's tables, dropped when the block ends, whoever is still connected.

    It is made on the server of AGENTRT_TEST_DATABASE_URL, whose user must be allowed to create databases. Without that variable
    on an embedded server that lives as long as this process (extra `embedded`).

    Raises `ConfigError`, `StoreUnavailable`: there is no such server.
    """
    async with fresh_database(await _server()) as url:
        store = PostgresStore(url)
        try:
            await store.migrate()
        finally:
            await store.close()
        yield url


async def _server() -> str:
    """The address of a database whose user may create databases."""
    if given := os.environ.get(server_variable):
        return given
    return await asyncio.to_thread(_embedded_server)


@lru_cache(maxsize=1)
def _embedded_server() -> str:
    """Started once a process: that takes seconds, a database on it a fraction of one."""
    from agentrt.store.embedded import open_embedded  # needs an extra

    folder = Path(tempfile.mkdtemp(prefix="agentrt-test-"))
    server = open_embedded(folder / "postgres")

    def remove() -> None:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return server.dsn
