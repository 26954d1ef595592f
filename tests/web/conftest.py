"""The door of a supervisor in this process, and a client for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from agentrt.agent import Agent
from agentrt.engine.supervisor import Supervisor
from agentrt.store import Store
from agentrt.store.postgres import PostgresStore
from agentrt.web import serving
from tests.conftest import supervising


@dataclass
class Door:
    """What is asked of a door; every answer is read to its end."""

    url: str
    session: aiohttp.ClientSession
    supervisor: Supervisor

    async def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
        async with self.session.request(method, self.url + path, headers=headers) as answer:
            return answer.status, await answer.text(), {name.lower(): value for name, value in answer.headers.items()}

    async def json(self, path: str) -> Any:
        async with self.session.get(self.url + path) as answer:
            return await answer.json()


@asynccontextmanager
async def door_of(supervisor: Supervisor, store: Store) -> AsyncIterator[Door]:
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(timeout=timeout) as session, serving("127.0.0.1:0", supervisor, store) as url:
        yield Door(url, session, supervisor)


Open = Callable[..., AbstractAsyncContextManager[Door]]


@pytest.fixture
def opened(database: str) -> Open:
    """`async with opened(agent, …) as door`: a supervisor of these agents and its door."""

    @asynccontextmanager
    async def opening(*agents: Agent[..., Any], **settings: Any) -> AsyncIterator[Door]:
        store = PostgresStore(database)
        async with supervising(database, *agents, **settings) as supervisor, door_of(supervisor, store) as door:
            yield door
        await store.close()

    return opening
