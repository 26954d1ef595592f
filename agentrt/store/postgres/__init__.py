"""The store on PostgreSQL, the only package that knows asyncpg."""

from agentrt.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
