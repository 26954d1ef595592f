"""Lanes: what happens by the clock goes on beside a statement that waits for a lock, and a lost connection is no one's trap."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from agentrt.errors import StoreUnavailable
from agentrt.store.postgres import PostgresStore
from tests.cases.proxy import Proxy
from tests.store.verbs import beat, here, send_one
from tests.support import Sql, locked, waiting

soon_s = 3.0

by_the_clock: dict[str, Callable[[PostgresStore], Awaitable[object]]] = {
    "due": lambda store: store.due(10),
    "sweep": lambda store: store.sweep(10),
    "beat": beat,
    "cancel_requests": lambda store: store.cancel_requests([1]),
    "horizon": lambda store: store.horizon(),
    "set_quiet": lambda store: store.set_quiet(here, True),
    "floors": lambda store: store.floors(["a"]),
    "leave": lambda store: store.leave(here),
}


@pytest.mark.parametrize("verb", list(by_the_clock))
async def test_what_happens_by_the_clock_does_not_wait_for_a_send_that_waits_for_its_mailbox(
    database: str, store: PostgresStore, sql: Sql, verb: str
) -> None:
    async with locked(database, "k"):
        held = asyncio.create_task(send_one(store, key="k"))
        await sql.until_count(waiting, 1)
        async with asyncio.timeout(soon_s):
            await by_the_clock[verb](store)
        assert not held.done()
    assert await held


async def test_where_one_connection_is_lost_no_idle_one_is_trusted(database: str) -> None:
    async with Proxy(database).running() as proxy:
        store = PostgresStore(proxy.dsn, timeout_s=2.0)
        try:
            await asyncio.gather(*(store.results([1]) for _ in range(4)))
            assert len(proxy.links) == 4
            for link in proxy.links:
                link.hold()
            with pytest.raises(StoreUnavailable):
                await store.results([1])
            await asyncio.gather(
                *(store.results([1]) for _ in range(4))
            )  # raises where one of those that are held is used
        finally:
            await store.close()
