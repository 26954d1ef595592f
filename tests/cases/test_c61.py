"""C61, security: names are built into SQL: a quote breaks out, capitals break LISTEN, and two long names become one."""

from __future__ import annotations

from typing import Any

import pytest

import agentrt
from agentrt import agent
from agentrt.errors import ConfigError
from agentrt.store.opening import open_store
from agentrt.store.postgres import PostgresStore
from tests.conftest import Start, supervising
from tests.support import Sql

pytestmark = pytest.mark.case
names = [
    "it's",
    'say "hi"',
    "a; drop table agentrt.jobs; --",
    "with-hyphen",
    "WithCapitals",
    "with space",
    "🦦 otter",
    "%s $1 :name {x}",
    "back\\slash",
    "new\nline",
    "agentrt.ready",
    "'",
    '"',
    "x" * 70 + "1",
    "x" * 70 + "2",
    "x" * 200,
]
schemas = ["UPPER", "with-hyphen", "_under", "select", "a" * 48]
bad_schemas = [
    "",
    "it's",
    'say "hi"',
    "a; drop schema public",
    "with space",
    "pg_mine",
    "🦦",
    "a" * 49,
    "a" * 63 + "1",
    "1st",
    "a.b",
]


@pytest.fixture
def agents() -> list[agentrt.Agent[..., Any]]:
    def named(name: str) -> agentrt.Agent[..., Any]:
        @agent(name=name)
        async def teller(n: int) -> list[str | int | None]:
            now = agentrt.current()
            return [now.agent, now.key, n]

        return teller

    return [named(name) for name in names]


async def test_any_name_of_an_agent_a_key_or_a_dedup_works_and_none_is_taken_for_another(
    agents: list[agentrt.Agent[..., Any]], database: str, client: agentrt.Client, sql: Sql
) -> None:
    async with supervising(database, *agents, poll_s=600) as supervisor:
        for told in agents:
            for key in names:
                job = await told.options(key=key, dedup=key).send(7)
                assert (await told.options(key=key, dedup=key).send(8)).id == job.id
            assert await told.options(timeout_s=15).ask(9) == [told.name, None, 9]
        jobs = [await told[key].send(n) for n, told in enumerate(agents) for key in names]
        results = [await job.result(timeout_s=30) for job in jobs]
        assert results == [[told.name, key, n] for n, told in enumerate(agents) for key in names]
        assert supervisor.stats.claimed["poll"] == 0
    assert await sql.value("select count(*) from agentrt.history") == len(names) * (2 * len(names) + 1)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\x00b", "\ud800", 5], ids=ascii)
async def test_a_name_that_cannot_be_is_refused_with_its_rule(name: Any, client: agentrt.Client) -> None:
    with pytest.raises(agentrt.UsageError, match=r"agent name (is|has)"):
        agentrt.to(name)
    for option in ("key", "dedup"):
        with pytest.raises(agentrt.UsageError, match=f"{option} (is|has)"):
            agentrt.to("x").options(**{option: name})


async def test_a_name_of_an_agent_that_is_too_long_is_refused_where_it_is_declared() -> None:
    with pytest.raises(agentrt.UsageError, match="201 characters; at most 200"):

        @agent(name="x" * 201)
        async def long() -> None: ...


@pytest.mark.parametrize("schema", schemas)
async def test_any_schema_name_that_is_allowed_works_with_prompt_wake_ups(
    schema: str, empty_database: str, start: Start
) -> None:
    store = PostgresStore(empty_database, schema)
    await store.migrate()
    await store.close()
    source = "from agentrt import agent\n\n@agent\nasync def echo(x: int) -> int:\n    return x\n"
    environ = {"AGENTRT_DATABASE_URL": empty_database}
    worker = start("run", "agents.py", "--schema", schema, "--poll", "600", source=source, environ=environ)
    await worker.until("supervisor.started")
    async with agentrt.connect(empty_database, schema=schema):
        echo = agentrt.to("echo")
        assert await echo.options(timeout_s=15).ask(x=1) == 1
        assert await echo.options(timeout_s=15, delay_s=0.2, key="k").ask(x=2) == 2
        job = await echo.options(delay_s=600).send(x=3)
        assert await job.cancel()
        with pytest.raises(agentrt.JobCancelled):
            await job.result(timeout_s=15)
    assert not worker.events("claim.found_by_poll")
    assert await worker.stop() == 0


@pytest.mark.parametrize("schema", bad_schemas)
async def test_a_schema_name_that_is_not_allowed_is_refused_with_its_rule(
    schema: str, database: str, start: Start
) -> None:
    with pytest.raises(ConfigError, match="schema name"):
        async with agentrt.connect(database, schema=schema):
            pass
    with pytest.raises(ConfigError, match="schema name"):
        await open_store(database, schema)
    command = start("jobs", "--schema", schema, name="jobs")
    assert await command.ended() == 2
    assert "schema name" in " ".join(command.log().split())
    assert len(command.log().splitlines()) == 1
