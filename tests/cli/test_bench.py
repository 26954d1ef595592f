"""`agentrt bench`: what each measurement says, and that a run leaves nothing behind and touches nothing of the user's."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psutil
import pytest

from agentrt.store.postgres import PostgresStore
from tests.cli.conftest import Cli, Here
from tests.support import Sql, eventually

smallest = {
    "wake": ("--samples", 10),
    "drain": ("--jobs", 200, "--processes", 2, "--slots", 10),
    "send": ("--one-by-one", 100, "--concurrent", 1_000, "--bulk", 1_000),
    "pingpong": ("--hops", 20),
    "steps": ("--steps", 100, "--concurrent", 100, "--jobs", 5),
    "backlog": ("--ready", 400, "--finished", 100, "--delayed", 100, "--passing", 200, "--claims", 10),
    "idle": ("--seconds", 3),
}
# Figures that are above zero, ours and by hand.
keys = {
    "wake": ("p50_ms", "p99_ms", "floor_p50_ms", "floor_p99_ms", "ratio"),
    "drain": ("per_s", "floor_per_s", "ratio", "cpu_us_per_job", "statements_per_job", "wal_bytes_per_job"),
    "send": (
        *("one_by_one_per_s", "floor_one_by_one_per_s", "concurrent_per_s", "floor_concurrent_per_s"),
        *("bulk_per_s", "floor_bulk_per_s"),
    ),
    "pingpong": ("hops_per_s", "floor_hops_per_s", "ratio"),
    "steps": (
        *("ms_per_step", "floor_ms", "round_trips_per_step"),
        *("concurrent_steps_per_s", "floor_concurrent_steps_per_s"),
    ),
    "backlog": (
        *("p50_ms", "p99_ms", "empty_p50_ms", "empty_p99_ms", "ratio", "floor_p50_ms"),
        *("finish_p50_ms", "empty_finish_p50_ms", "floor_finish_p50_ms"),
    ),
    "idle": ("seconds", "connections", "memory_mb"),
}
relations: dict[str, Callable[[dict[str, Any]], bool]] = {
    "wake": lambda found: (
        found["p50_ms"] <= found["p99_ms"]
        and found["floor_p50_ms"] <= found["floor_p99_ms"]
        and found["ratio"] == round(found["p50_ms"] / found["floor_p50_ms"], 3)
    ),
    "drain": lambda found: (
        (found["jobs"], found["processes"]) == (200, 2)
        and found["statements_per_job"] < 2  # claims and ends are shared
        and found["floor_statements_per_job"] == 6 / 200  # each half a claim, an end, and a look for more
    ),
    "steps": lambda found: found["round_trips_per_step"] <= 1.5,
    "idle": lambda found: (
        found["floor_transactions_per_s"] == 0
        and found["transactions_per_s"] <= 1
        and 1 <= found["connections"] <= 4
        and 0 <= found["cpu_percent"] < 50
    ),
}
schema = "agentrt_bench"


async def exists(sql: Sql, name: str = schema) -> bool:
    return bool(await sql.value("select exists(select 1 from pg_namespace where nspname = $1)", name))


async def figures(cli: Cli, command: str, *options: object) -> dict[str, Any]:
    done = await cli("bench", command, *smallest[command], *options, "--json")
    assert (done.code, done.err) == (0, ""), done
    found = json.loads(done.out.splitlines()[-1])
    assert isinstance(found, dict)
    return found


@asynccontextmanager
async def under_way(cli: Cli, sql: Sql, *arguments: object) -> AsyncIterator[Process]:
    """A measurement whose supervisor process works."""
    process = await asyncio.create_subprocess_exec(
        *cli.command("bench", *arguments), cwd=cli.folder, env=cli.environ, stdin=DEVNULL, stdout=PIPE, stderr=PIPE
    )

    async def works() -> bool:
        assert process.returncode is None
        there = await sql.value("select to_regclass($1) is not null", f"{schema}.by_hand_jobs")
        return bool(there and await sql.value(f"select count(*) > 0 from {schema}.supervisors"))

    try:
        await eventually(works, what="a supervisor at work")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize("command", list(smallest))
async def test_a_measurement_says_its_figures_and_its_schema_is_gone(cli: Cli, sql: Sql, command: str) -> None:
    found = await figures(cli, command)
    assert {key: found[key] for key in keys[command] if not found[key] > 0} == {}
    assert command not in relations or relations[command](found), found
    assert not await exists(sql)


async def test_an_old_snapshot_is_kept_while_jobs_pass(cli: Cli, sql: Sql) -> None:
    assert (await figures(cli, "backlog", "--old-snapshot"))["old_snapshot"] is True
    assert not await exists(sql)


async def test_people_get_a_table(cli: Cli) -> None:
    done = await cli("bench", "pingpong", *smallest["pingpong"])
    assert (done.code, done.err) == (0, ""), done
    for text in ("20 messages between two agents", "hops a second", "agentrt", "by hand", "ratio"):
        assert text in done.out, done


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_measurement_that_is_stopped_cleans_up(cli: Cli, sql: Sql, number: signal.Signals) -> None:
    async with under_way(cli, sql, "drain", "--jobs", 10_000) as process:
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        process.send_signal(number)  # an impatient user does not keep it from cleaning up
        _, err = await process.communicate()
    assert process.returncode == 128 + number
    assert err.decode() == f"agentrt: {number.name}: the measurement was stopped, its schema is gone.\n"
    assert not await exists(sql)
    assert [child for child in started if child.is_running()] == []


async def test_a_measurement_that_fails_cleans_up_and_says_why(cli: Cli, sql: Sql) -> None:
    async with under_way(cli, sql, "drain", "--jobs", 10_000) as process:
        os.kill(await sql.value(f"select pid from {schema}.supervisors"), signal.SIGKILL)
        out, err = await process.communicate()
    assert (process.returncode, out) == (1, b"")
    assert err.startswith(b"agentrt: The supervisor ended with code -9"), err
    assert not await exists(sql)


async def test_what_a_killed_measurement_left_is_taken_over_unless_it_holds_jobs(cli: Cli, sql: Sql) -> None:
    async with under_way(cli, sql, "wake", "--samples", 10_000) as process:
        started = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        await process.wait()

    async def alone() -> bool:
        return not any(child.is_running() for child in started)

    await eventually(alone, what="the end of the processes that the measurement had started")
    assert await exists(sql)
    await sql.run(f"insert into {schema}.jobs(agent) values ('noted')")
    refused = (await cli("bench", "pingpong", *smallest["pingpong"])).refused(2)
    assert f"Schema '{schema}' holds 1 unfinished job," in refused
    assert f'drop schema "{schema}" cascade' in refused
    await sql.run(f"delete from {schema}.jobs")
    await sql.run(f"create table {schema}.mine(id int)")
    assert "holds what no measurement made (mine)" in (await cli("bench", "pingpong", *smallest["pingpong"])).refused(2)
    await sql.run(f"drop table {schema}.mine")
    await figures(cli, "pingpong")
    assert not await exists(sql)


async def test_a_schema_with_live_jobs_is_refused_and_left_as_it_is(cli: Cli, sql: Sql, database: str) -> None:
    for name, commands in (("agentrt", ["wake"]), (schema, ["drain", "idle"])):
        store = PostgresStore(database, name)
        await store.migrate()
        await store.close()
        await sql.run(f"insert into \"{name}\".jobs(agent) select 'mine' from generate_series(1, 3)")
        before = await sql.rows(f'select j.*, j.xmin from "{name}".jobs j')
        for command in commands:
            refused = (await cli("bench", command, *smallest[command], "--schema", name)).refused(2)
            assert f"Schema '{name}' holds 3 unfinished jobs" in refused
            assert "--schema" in refused
        assert await sql.rows(f'select j.*, j.xmin from "{name}".jobs j') == before


async def test_a_schema_that_no_measurement_made_is_refused(cli: Cli, sql: Sql) -> None:
    await sql.run("create schema mine")
    assert "Schema 'mine' was not made by 'agentrt bench'" in (await cli("bench", "idle", "--schema", "mine")).refused(
        2
    )
    assert await exists(sql, "mine")


async def test_a_user_who_may_not_make_a_schema_is_told_what_to_grant(tmp_path: Path, sql: Sql, database: str) -> None:
    user = f"bench_{uuid4().hex[:8]}"
    await sql.run(f"create role {user} login password 'mine'")
    try:
        parts = urlsplit(database)
        url = urlunsplit(parts._replace(netloc=f"{user}:mine@{parts.netloc.rpartition('@')[2]}"))
        refused = (await Cli(tmp_path, {"AGENTRT_DATABASE_URL": url})("bench", "pingpong")).refused(2)
    finally:
        await sql.run(f"drop role {user}")
    assert f"The schema '{schema}' cannot be made" in refused
    assert "grant create on database" in refused


async def test_two_measurements_do_not_share_a_schema(cli: Cli, sql: Sql) -> None:
    async with under_way(cli, sql, "wake", "--samples", 10_000):
        refused = (await cli("bench", "pingpong", *smallest["pingpong"])).refused(2)
        assert f"Another 'agentrt bench' runs in schema '{schema}'" in refused
        await figures(cli, "pingpong", "--schema", "Other-bench")
    assert not await exists(sql, "Other-bench")


async def test_settings_in_the_environment_are_not_measured(tmp_path: Path, database: str) -> None:
    cli = Cli(tmp_path, {"AGENTRT_DATABASE_URL": database, "AGENTRT_SLOTS": "none", "AGENTRT_SCHEMA": "nowhere"})
    await figures(cli, "wake")


@pytest.mark.parametrize(
    "arguments",
    [
        ("wake", "--samples", 9),
        ("drain", "--jobs", 0),
        ("drain", "--processes", 0),
        ("send", "--bulk", -1),
        ("pingpong", "--hops", 1),
        ("steps", "--jobs", 0),
        ("backlog", "--ready", 100),
        ("idle", "--seconds", "nan"),
        ("idle", "--schema", "pg_mine"),
    ],
)
def test_a_size_that_cannot_be_is_refused(here: Here, arguments: tuple[object, ...]) -> None:
    here("bench", *arguments).refused(2)


def test_a_database_that_is_not_there_is_said(here: Here) -> None:
    here("bench", "drain", "--database", "postgresql://nobody@127.0.0.1:1/none").refused(3)
