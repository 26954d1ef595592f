"""migrate, prepare: the tables are those that this agentrt needs, or it says which command mends them."""

from __future__ import annotations

import asyncio

import pytest

from agentrt.errors import SchemaOutdated, StoreError
from agentrt.store import Store
from agentrt.store import sql as known
from agentrt.store.postgres import PostgresStore, migrate
from agentrt.store.postgres import store as postgres_store
from tests.conftest import execute
from tests.store.verbs import claim_one, others, send_one, state_of, succeed

names = [name for _, name, _ in known.migrations()]
later = (9_000, "9000_later", "create table agentrt.later(id int);")


def with_one_more(monkeypatch: pytest.MonkeyPatch, *more: tuple[int, str, str]) -> None:
    """An agentrt that knows more migrations."""
    all_of_them = [*known.migrations(), *more]
    for module in (migrate, postgres_store):
        monkeypatch.setattr(module, "migrations", lambda: all_of_them)


async def in_migrations(store: PostgresStore, statement: str) -> None:
    """Change the records of a schema, as a restored backup or another version might."""
    await execute(store.dsn, statement.replace("migrations", f'"{store.schema}".migrations'))


async def test_migrate_makes_what_the_verbs_need(bare: PostgresStore) -> None:
    assert await bare.migrate() == names
    assert await bare.pending_migrations() == []
    job_id = await send_one(bare, key="k")
    await succeed(bare, await claim_one(bare))
    assert await state_of(bare, job_id) == "succeeded"


async def test_migrate_changes_nothing_when_nothing_is_missing(bare: PostgresStore) -> None:
    await bare.migrate()
    job_id = await send_one(bare)
    assert await bare.migrate() == []
    assert await state_of(bare, job_id) == "ready"


async def test_to_ask_what_is_missing_changes_nothing(bare: PostgresStore) -> None:
    assert await bare.pending_migrations() == names
    assert await bare.pending_migrations() == names


async def test_migrates_at_the_same_time_are_one(bare: PostgresStore) -> None:
    async with others(bare, 5) as stores:
        answers = await asyncio.gather(*(each.migrate() for each in [bare, *stores]))
    assert sorted(answers) == [[], [], [], [], [], names]


async def test_processes_that_start_at_the_same_time_on_an_empty_database_all_start(bare: PostgresStore) -> None:
    async with others(bare, 5) as stores:
        await asyncio.gather(*(each.prepare() for each in [bare, *stores]))
    assert await bare.pending_migrations() == []


async def test_a_migration_that_was_applied_from_another_file_is_refused(bare: PostgresStore) -> None:
    await bare.migrate()
    await in_migrations(bare, f"update migrations set checksum = 'other' where name = '{names[0]}'")
    for ask in (bare.migrate, bare.pending_migrations, bare.prepare):
        with pytest.raises(SchemaOutdated, match=names[0]):
            await ask()


async def test_a_newer_database_is_refused(bare: PostgresStore) -> None:
    await bare.migrate()
    await in_migrations(bare, "insert into migrations(version, name, checksum) values (9999, '9999_future', '')")
    for ask in (bare.migrate, bare.pending_migrations, bare.prepare):
        with pytest.raises(SchemaOutdated, match="9999, newer than this agentrt"):
            await ask()


async def test_an_older_database_names_the_command_that_mends_it(
    bare: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bare.migrate()
    job_id = await send_one(bare)
    with_one_more(monkeypatch, later)
    with pytest.raises(SchemaOutdated, match=r"9000_later.*'agentrt migrate'"):
        await bare.prepare()
    assert await bare.pending_migrations() == ["9000_later"]
    assert await bare.migrate() == ["9000_later"]
    await bare.prepare()
    assert await state_of(bare, job_id) == "ready"


async def test_tables_that_belong_to_this_process_alone_are_brought_up_to_date(
    bare: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bare.migrate()
    with_one_more(monkeypatch, later)
    await bare.prepare(upgrade=True)
    assert await bare.pending_migrations() == []


async def test_a_migration_that_fails_leaves_the_tables_as_they_were(
    bare: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bare.migrate()
    with_one_more(monkeypatch, later, (9_001, "9001_broken", "create table agentrt.half(id int); select 1/0;"))
    with pytest.raises(StoreError, match="division by zero"):
        await bare.migrate()
    assert await bare.pending_migrations() == ["9000_later", "9001_broken"]
    with_one_more(monkeypatch, later, (9_001, "9001_mended", "create table agentrt.half(id int);"))
    assert await bare.migrate() == ["9000_later", "9001_mended"]


async def test_the_script_does_what_migrate_does(bare: PostgresStore) -> None:
    script = await bare.migration_script()
    assert await bare.pending_migrations() == names
    await execute(bare.dsn, script)
    assert await bare.pending_migrations() == []
    assert await bare.migration_script() == ""
    await send_one(bare, key="k")
    await succeed(bare, await claim_one(bare))


async def test_a_missing_table_names_the_command_that_makes_it(bare: PostgresStore) -> None:
    with pytest.raises(StoreError, match="'agentrt migrate'"):
        await send_one(bare)


async def test_schemas_of_one_database_do_not_see_each_other(bare: PostgresStore, store: Store) -> None:
    await bare.prepare()
    await send_one(store, key="k")
    job_id = await send_one(bare, key="k")
    assert await state_of(bare, job_id) == "ready"
    assert len(await bare.jobs(state=None, agent=None, key=None, limit=10)) == 1
    await succeed(bare, await claim_one(bare))
    assert (await claim_one(store)).attempt == 1
