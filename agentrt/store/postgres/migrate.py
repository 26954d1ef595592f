"""Bring the tables up to date: numbered files, one transaction, recorded with a checksum, one process at a time."""

from __future__ import annotations

import hashlib

import asyncpg

from agentrt.errors import SchemaOutdated
from agentrt.store.postgres.lane import connect, translated
from agentrt.store.sql import in_schema, migrations

_table = """
create schema if not exists "{schema}";
create table if not exists "{schema}".migrations(
  version int primary key, name text not null, checksum text not null, applied_at timestamptz not null default now());
"""


def checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


async def migrate(dsn: str, schema: str) -> list[str]:
    """Apply what is missing. Returns the names applied. After an error nothing is changed.

    Raises `SchemaOutdated` when the database is newer than this agentrt, or was migrated from other files.
    """
    connection = await connect(dsn)
    try:
        with translated("migrate"):
            async with connection.transaction():
                await connection.execute("set local statement_timeout = 0")
                await connection.execute(
                    "select pg_advisory_xact_lock(hashtextextended($1, 0))", f"agentrt.migrate.{schema}"
                )
                await connection.execute(_table.format(schema=schema))
                missing = _missing(await _applied(connection, schema), schema)
                for version, name, text in missing:
                    await connection.execute(in_schema(text, schema))
                    await connection.execute(
                        f'insert into "{schema}".migrations(version, name, checksum) values ($1, $2, $3)',  # noqa: S608 - checked by config.schema_name
                        version,
                        name,
                        checksum(text),
                    )
                return [name for _, name, _ in missing]
    finally:
        await connection.close(timeout=5)


async def pending(dsn: str, schema: str) -> list[str]:
    """The names of the migrations that are missing; changes nothing. Raises `SchemaOutdated` as `migrate` does."""
    connection = await connect(dsn)
    try:
        with translated("migrate --check"):
            exists = await connection.fetchval("select to_regclass($1)", f'"{schema}".migrations')
            applied = await _applied(connection, schema) if exists else {}
            return [name for _, name, _ in _missing(applied, schema)]
    finally:
        await connection.close(timeout=5)


def script(missing: list[str], schema: str) -> str:
    """What `migrate` does for these migrations, as one transaction of SQL; empty for none."""
    if not missing:
        return ""
    parts = [
        "-- Run this as the role that agentrt connects as, or grant that role all on what it makes.",
        "begin;",
        f"select pg_advisory_xact_lock(hashtextextended('agentrt.migrate.{schema}', 0));",
        _table.format(schema=schema),
    ]
    for version, name, text in migrations():
        if name in missing:
            row = f"({version}, '{name}', '{checksum(text)}')"
            record = f"insert into agentrt.migrations(version, name, checksum) values {row};"  # noqa: S608 - our files
            parts.append(in_schema(f"{text}\n{record}", schema))
    return "\n".join([*parts, "commit;"])


async def _applied(connection: asyncpg.Connection, schema: str) -> dict[int, str]:
    rows = await connection.fetch(f'select version, checksum from "{schema}".migrations')  # noqa: S608 - as above
    return {row["version"]: row["checksum"] for row in rows}


def _missing(applied: dict[int, str], schema: str) -> list[tuple[int, str, str]]:
    known = migrations()
    newest = known[-1][0]
    beyond = max(applied, default=0)
    if beyond > newest:
        raise SchemaOutdated(
            f"Schema {schema!r} is at migration {beyond:04d}, newer than this agentrt knows ({newest:04d})."
            " Install the newer agentrt."
        )
    for version, name, text in known:
        if version in applied and applied[version] != checksum(text):
            raise SchemaOutdated(
                f"Migration {name} was applied to schema {schema!r} from a different file. Use the agentrt that made it,"
                " or another schema (--schema)."
            )
    return [migration for migration in known if migration[0] not in applied]
