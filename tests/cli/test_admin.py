"""`agentrt migrate`, `agents`, `doctor`: the installation, seen and mended from the shell."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from agentrt.cli import checks
from agentrt.store.postgres import PostgresStore
from tests.cli.conftest import Cli, Here
from tests.conftest import execute
from tests.support import Sql

nowhere = "postgresql://somebody:sEcReT99@127.0.0.1:1/nowhere"
supervisor_sql = """
insert into agentrt.supervisors(id, host, pid, agents, slots, beat_at) values
  (gen_random_uuid(), 'box', 7, '{writer,critic}', 10, now()),
  (gen_random_uuid(), 'gone', 8, '{ghost}', 10, now() - interval '10 min')
"""


def verdicts(report: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["status"] for check in report["checks"]}


# ------------------------------------------------------------------ migrate


async def test_check_says_what_is_missing_and_changes_nothing(empty_database: str, tmp_path: Path) -> None:
    cli = Cli(tmp_path, {"AGENTRT_DATABASE_URL": empty_database})
    missing = await cli("migrate", "--check", "--json")
    assert missing.code == 1
    assert missing.value["missing"][0] == "0001_core"
    connection = await asyncpg.connect(empty_database)
    assert await connection.fetchval("select count(*) from pg_namespace where nspname = 'agentrt'") == 0
    await connection.close()


@pytest.mark.case("C63")
async def test_processes_that_migrate_at_the_same_time_make_one_schema(empty_database: str, tmp_path: Path) -> None:
    cli = Cli(tmp_path, {"AGENTRT_DATABASE_URL": empty_database})
    done = await asyncio.gather(*(cli("migrate", "--json") for _ in range(3)))
    assert [one.code for one in done] == [0] * 3, done
    applied = [name for one in done for name in one.value["applied"]]
    assert len(applied) == len(set(applied)) > 0
    connection = await asyncpg.connect(empty_database)
    assert [row[0] for row in await connection.fetch("select name from agentrt.migrations order by 1")] == applied
    await connection.close()


async def test_the_sql_of_migrate_does_what_migrate_does(empty_database: str, tmp_path: Path) -> None:
    cli = Cli(tmp_path, {"AGENTRT_DATABASE_URL": empty_database, "AGENTRT_SCHEMA": "My-agents"})
    script = await cli("migrate", "--sql")
    assert script.code == 0
    await execute(empty_database, script.out)
    check, again = await asyncio.gather(cli("migrate", "--check"), cli("migrate", "--sql"))
    assert (check.code, again.code, again.out) == (0, 0, "")


# ------------------------------------------------------------------ agents


async def test_agents_marks_those_whose_jobs_no_running_supervisor_can_take(cli: Cli, sql: Sql) -> None:
    await sql.run(supervisor_sql)
    await sql.run("insert into agentrt.jobs(agent, key) values ('ghost', 'k'), ('ghost', 'k'), ('writer', null)")
    value, table = await asyncio.gather(cli("agents", "--json"), cli("agents"))
    rows = {row["agent"]: row for row in value.value["agents"]}
    assert set(rows) == {"critic", "ghost", "writer"}
    assert {name: row["waits_for_worker"] for name, row in rows.items()} == {
        "critic": False, "ghost": True, "writer": False,
    }  # fmt: skip
    assert (rows["ghost"]["ready"], rows["ghost"]["blocked"], rows["writer"]["workers"]) == (1, 1, 1)
    assert [(row["host"], row["live"]) for row in value.value["supervisors"]] == [("box", True), ("gone", False)]
    lines = table.out.splitlines()
    assert sum("no worker" in line for line in lines) == 1
    assert any(line.startswith("box:7") for line in lines)


# ------------------------------------------------------------------ doctor


@pytest.mark.parametrize("command", [["jobs"], ["why", "1"], ["cancel", "1"], ["agents"], ["migrate"], ["doctor"]])
def test_a_database_that_cannot_be_reached_is_exit_code_3_without_its_password(command: list[str], here: Here) -> None:
    done = here(*command, "--database", nowhere)
    assert done.code == 3
    assert (done.out or done.err).count("cannot be reached") == 1
    assert "sEcReT" not in done.out + done.err


async def test_doctor_finds_nothing_wrong_where_nothing_is(cli: Cli, sql: Sql) -> None:
    await sql.run(supervisor_sql)
    value, text = await asyncio.gather(cli("doctor", "--json"), cli("doctor"))
    assert (value.code, value.value["ok"], text.code) == (0, True, 0)
    assert set(verdicts(value.value).values()) == {"ok"}, value.value
    assert len(text.out.splitlines()) == len(value.value["checks"])


async def test_doctor_finds_what_was_left_lying_and_says_what_to_do(cli: Cli, sql: Sql) -> None:
    await sql.run("insert into agentrt.jobs(agent) values ('writer'), ('writer'), ('ghost')")
    late = "now() - interval '5 min'"
    await sql.run(f"update agentrt.jobs set status = 'running', lease_expires = {late} where id = 1")
    await sql.run(f"update agentrt.jobs set status = 'scheduled', run_after = {late} where id = 2")
    alone = await cli("doctor", "--json")
    assert alone.code == 0  # nobody runs: to start a supervisor is all it takes
    found = verdicts(alone.value)
    assert [found[name] for name in ("supervisors", "workers", "leases", "due")] == ["warn"] * 4
    assert all(check["remedy"] for check in alone.value["checks"] if check["status"] != "ok")
    await sql.run(supervisor_sql)
    watched = await cli("doctor", "--json")
    assert watched.code == 1  # one runs and does not see to it
    found = verdicts(watched.value)
    assert [found[name] for name in ("supervisors", "workers", "leases", "due")] == ["ok", "warn", "fail", "fail"]
    assert "ghost (1)" in next(check["text"] for check in watched.value["checks"] if check["name"] == "workers")


async def test_doctor_on_a_database_without_tables_says_migrate(empty_database: str, tmp_path: Path) -> None:
    doctor = await Cli(tmp_path, {"AGENTRT_DATABASE_URL": empty_database})("doctor")
    assert doctor.code == 1
    assert "fail  tables" in doctor.out
    assert "agentrt migrate" in doctor.out


async def test_doctor_names_the_transaction_that_holds_back_vacuum(
    database: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_old_transaction_s", 0.0)
    other = await asyncpg.connect(database, server_settings={"application_name": "forgotten"})
    async with other.transaction():
        await other.fetchval("select 1")
        found = {check.name: check for check in await checks.examine(store)}["transactions"]
    await other.close()
    assert found.status == "warn"
    assert "forgotten" in found.text
    assert f"pg_terminate_backend({other.get_server_pid()})" in found.remedy


async def test_doctor_hears_that_nothing_is_heard(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a pooler in transaction mode: LISTEN is accepted, and its notifications go elsewhere."""
    monkeypatch.setattr(checks, "_bell_s", 0.1)
    listen = store.listen
    monkeypatch.setattr(store, "listen", lambda _heard: listen(lambda _channel, _payload: None))
    found = {check.name: check for check in await checks.examine(store)}
    assert found["listen"].status == "fail"
    assert "pooler" in found["listen"].remedy


good_server = {"version": "18.4", "version_num": 180004, "standby": False, "isolation": "read committed"}


def test_each_verdict_turns_at_its_limit() -> None:
    assert checks.database(good_server, 0.001).status == "ok"
    assert checks.database(good_server, 0.2).status == "warn"
    assert checks.database(good_server | {"version_num": 130020}, 0.001).status == "fail"
    assert checks.database(good_server | {"standby": True}, 0.001).status == "fail"
    assert checks.database(good_server | {"isolation": "serializable"}, 0.001).status == "fail"
    assert [checks.clock(skew_s).status for skew_s in (0.5, -0.5, 5.0, -5.0)] == ["ok", "ok", "warn", "warn"]
    assert [checks.notifications(share).status for share in (0.0, 0.5)] == ["ok", "warn"]
    bloated = {"dead": 10**6, "live": 1, "vacuumed_s": 3600.0}
    assert checks.dead_rows(bloated, autovacuum=True).status == "warn"
    assert checks.dead_rows(bloated | {"vacuumed_s": 30.0}, autovacuum=True).status == "ok"
    assert checks.dead_rows(bloated | {"dead": 10}, autovacuum=False).status == "warn"
    assert "pg_read_all_stats" in checks.transactions([], sees_all=False).text
