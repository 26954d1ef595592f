"""Real databases for the tests: one server a run, a fresh migrated database a test.

The server is AGENTRT_TEST_DATABASE_URL when that is set, else a container where a Docker engine has or gets the image, else
the embedded one.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import asyncpg
import pytest
from hypothesis import HealthCheck, settings

import agentrt
from agentrt.store.postgres import PostgresStore
from agentrt.store.postgres.throwaway import on_server
from agentrt.testing import Clock, supervising
from tests.support import Program, Sql, eventually

__all__ = ["Clock", "Start", "execute", "on_server", "supervising"]  # what tests import from here

template = "agentrt_test_template"
# The gate says the same of the same code: the same values each time, and no deadline on a busy machine. Leaves no files.
settings.register_profile(
    "agentrt", database=None, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("agentrt")
signal.signal(
    signal.SIGINT, signal.default_int_handler
)  # a shell's background job ignores it, and so would its children


# Begun first, so that no worker is left alone with one of them at the end.
longest = (
    "test_boundaries.py", "test_bench.py", "test_check.py", "test_embedded.py", "test_crash_everywhere.py", "test_c65.py",
    "test_c68.py", "test_inside.py", "test_plans_postgres.py", "test_c02.py", "test_c16.py", "test_c64.py", "test_c59.py",
    "test_trace.py", "test_c52.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {name: rank for rank, name in enumerate(longest)}
    items.sort(key=lambda item: ranks.get(item.path.name, len(longest)))


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of a database whose user may create databases."""
    with ExitStack() as stack:
        yield os.environ.get("AGENTRT_TEST_DATABASE_URL") or _in_container(stack) or _embedded(stack)


def _in_container(stack: ExitStack) -> str | None:
    """None where no engine answers, or where it cannot get an image: without a registry, or over its rate limit."""
    if not _docker_answers():
        return None
    from docker.errors import DockerException
    from testcontainers.community.postgres import PostgresContainer

    try:
        container = stack.enter_context(PostgresContainer("postgres:18"))
    except (DockerException, OSError):
        return None
    address: str = container.get_connection_url(driver=None)
    return address


def _embedded(stack: ExitStack) -> str:
    from agentrt.store.embedded import open_embedded

    folder = Path(tempfile.mkdtemp(prefix="agentrt-test-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    embedded = open_embedded(folder / "postgres")
    stack.callback(embedded.close)
    # Each test makes and drops a database, and nobody pulls the plug of this machine: without flushes that takes half as long.
    asyncio.run(execute(embedded.dsn, "alter system set fsync = off", "select pg_reload_conf()"))
    return embedded.dsn


def _docker_answers() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, timeout=20, check=False).returncode == 0


@pytest.fixture
async def flushing(server: str) -> AsyncIterator[None]:
    """The server flushes its log, as servers do: for what is measured."""
    connection = await asyncpg.connect(server)

    async def flush(state: str) -> None:
        await execute(server, f"alter system set fsync = {state}", "select pg_reload_conf()")
        await eventually(lambda: connection.fetchval("select current_setting('fsync') = $1", state))

    try:
        as_it_is = await connection.fetchval("show fsync")
        if as_it_is == "off":
            await flush("on")
        yield
        if as_it_is == "off":
            await flush("off")
    finally:
        await connection.close()


async def execute(dsn: str, *statements: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture(scope="session")
def migrated(server: str) -> Iterator[str]:
    """The name of a template database that has the tables."""
    name = f"{template}_{uuid.uuid4().hex[:8]}"

    async def make() -> None:
        await execute(server, f'create database "{name}"')
        store = PostgresStore(on_server(server, name))
        await store.migrate()
        await store.close()

    asyncio.run(make())
    yield name
    asyncio.run(execute(server, f'drop database "{name}" with (force)'))


@pytest.fixture
async def empty_database(server: str) -> AsyncIterator[str]:
    """A fresh database without tables."""
    name = f"agentrt_test_{uuid.uuid4().hex[:12]}"
    await execute(server, f'create database "{name}"')
    yield on_server(server, name)
    await execute(server, f'drop database "{name}" with (force)')


@pytest.fixture
async def database(server: str, migrated: str) -> AsyncIterator[str]:
    """A fresh database with the tables."""
    name = f"agentrt_test_{uuid.uuid4().hex[:12]}"
    await execute(server, f'create database "{name}" template "{migrated}"')
    yield on_server(server, name)
    await execute(server, f'drop database "{name}" with (force)')


@pytest.fixture
async def store(database: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(database)
    yield store
    await store.close()


@pytest.fixture
async def sql(database: str) -> AsyncIterator[Sql]:
    connection = await asyncpg.connect(database)
    yield Sql(connection)
    await connection.close()


@pytest.fixture
def clock(database: str) -> Clock:
    """The clock of this test's database."""
    return Clock(database)


@pytest.fixture
async def client(database: str) -> AsyncIterator[agentrt.Client]:
    async with agentrt.connect(database) as client:
        yield client


Start = Callable[..., Program]


@pytest.fixture
def start(database: str, tmp_path: Path) -> Iterator[Start]:
    """Start real supervisor processes: `start("run", "agents.py", "--slots", "4", source=…, name=…, environ={…})`.

    `source` is written to agents.py in the test's folder. The database travels in the environment.
    """
    programs: list[Program] = []

    def begin(
        *arguments: str, source: str | None = None, name: str = "agentrt", environ: dict[str, str] | None = None
    ) -> Program:
        if source is not None:
            (tmp_path / "agents.py").write_text(source)
        program = Program(list(arguments), tmp_path, {"AGENTRT_DATABASE_URL": database, **(environ or {})}, name)
        programs.append(program)
        return program

    yield begin
    for program in programs:
        program.kill()
