"""From a database address to a store: starts the embedded server when the address asks for one."""

from __future__ import annotations

import asyncio

from agentrt.config import embedded_directory, schema_name
from agentrt.store.postgres import PostgresStore


async def open_store(url: str, schema: str = "agentrt") -> PostgresStore:
    """A store for an address that `config.database_url` let pass. No connection is made yet (an embedded server is started).

    Raises `ConfigError` for a bad schema name or a missing extra, `StoreUnavailable` when the embedded server does not start.
    """
    schema_name(schema)
    if not url.startswith("embedded:"):
        return PostgresStore(url, schema)
    from agentrt.store.embedded import open_embedded  # needs an extra that a server's user does without

    server = await asyncio.to_thread(open_embedded, embedded_directory(url))
    return PostgresStore(server.dsn, schema, on_close=server.close)
