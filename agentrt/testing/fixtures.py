"""Fixtures for pytest, which is no dependency: in a conftest.py, `from agentrt.testing.fixtures import clock, database`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from agentrt.testing.database import throwaway_database
from agentrt.testing.inside import Clock

_start_s_max = 180.0  # an embedded server may have to be made first


@pytest.fixture
def database() -> Iterator[str]:
    """The address of a fresh database with the tables, dropped after the test."""
    # In a thread with an event loop of its own: a fixture that is no coroutine serves tests of every asyncio plugin, and of none.
    made: list[str | BaseException] = []
    ready, over = threading.Event(), threading.Event()

    async def hold() -> None:
        async with throwaway_database() as url:
            made.append(url)
            ready.set()
            await asyncio.to_thread(over.wait)

    def run() -> None:
        try:
            asyncio.run(hold())
        except BaseException as error:  # handed to the test
            made.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="throwaway-database", daemon=True)
    thread.start()
    if not ready.wait(_start_s_max):
        raise TimeoutError(f"There was no database within {_start_s_max:g} s.")
    if isinstance(made[0], BaseException):
        raise made[0]
    yield made[0]
    over.set()
    thread.join()
    if isinstance(made[-1], BaseException):
        raise made[-1]


@pytest.fixture
def clock(database: str) -> Clock:
    """The clock of the test's database."""
    return Clock(database)
