"""What several cases share: a database server that a case may stop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cases.own_server import OwnServer, own_server


@pytest.fixture(scope="session")
def own_for_all() -> Iterator[OwnServer]:
    with own_server() as server:
        yield server


@pytest.fixture
async def own(own_for_all: OwnServer) -> OwnServer:
    """A running server, without tables, that the test may stop and start."""
    if not own_for_all.running:  # a test failed in the middle of its outage
        own_for_all.start()
    async with own_for_all.sql() as sql:
        await sql.run("drop schema if exists agentrt cascade")
    return own_for_all
