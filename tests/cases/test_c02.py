"""C02, wake-up: the listening connection goes silent without an end (a firewall forgot it), and stays deaf for good."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.cases.proxy import Link, Proxy
from tests.conftest import Start
from tests.support import Program, Sql, eventually

pytestmark = pytest.mark.case
agents = str(Path(__file__).parent / "ledger.py")
noticed_s = 30.0  # the promise is 10 s: a beat of 9 s, and 1 s for the answer; the poll comes after 600 s
_enqueue = "insert into agentrt.jobs(agent) values ('instant') returning id"


@pytest.fixture
async def proxy(database: str) -> AsyncIterator[Proxy]:
    async with Proxy(database).running() as proxy:
        yield proxy


async def _started(proxy: Proxy, start: Start) -> Program:
    program = start("run", agents, "--poll", "600", environ={"AGENTRT_DATABASE_URL": proxy.dsn})
    await program.until("supervisor.started")

    async def listens() -> bool:
        return len(proxy.listening) == 1

    await eventually(listens)
    return program


@pytest.mark.parametrize(
    "silence",
    [Link.hold, lambda link: link.from_server.drop()],
    ids=["held in both directions", "the server's bytes are lost"],
)
async def test_a_deaf_listener_is_noticed_and_rebuilt_and_the_missed_job_is_found(
    proxy: Proxy, sql: Sql, start: Start, silence: Callable[[Link], None]
) -> None:
    program = await _started(proxy, start)
    await sql.until(await sql.value(_enqueue), "succeeded", within_s=10)

    (deaf,) = proxy.listening
    silence(deaf)
    await sql.until(await sql.value(_enqueue), "succeeded", within_s=noticed_s)

    await program.until("listener.deaf", level="warning")

    async def rebuilt() -> bool:
        return deaf not in proxy.listening or len(proxy.listening) == 2

    await eventually(rebuilt)  # the job may have been found before that by a look that belongs to the start
    await sql.until(await sql.value(_enqueue), "succeeded", within_s=10)  # at once again: the new one hears
    assert len(program.events("listener.deaf")) == 1
    assert not program.events("claim.found_by_poll")
    assert await program.stop() == 0


async def test_a_listener_whose_connection_is_reset_is_rebuilt_at_once(proxy: Proxy, sql: Sql, start: Start) -> None:
    program = await _started(proxy, start)
    (old,) = proxy.listening
    old.cut()

    async def rebuilt() -> bool:
        return bool(proxy.listening) and old not in proxy.listening

    await eventually(rebuilt, within_s=10)
    await sql.until(await sql.value(_enqueue), "succeeded", within_s=10)
    assert not program.events("claim.found_by_poll")
    assert await program.stop() == 0


@pytest.mark.timeout(240)
async def test_when_every_connection_goes_silent_all_are_given_up_and_made_anew(
    proxy: Proxy, sql: Sql, start: Start
) -> None:
    program = await _started(proxy, start)
    await sql.until(await sql.value(_enqueue), "succeeded", within_s=10)

    for link in proxy.links:
        link.hold()
    # A claim without an answer is given up after 30 s; a beat, which shows the listener's silence, before that.
    await sql.until(await sql.value(_enqueue), "succeeded", within_s=90)

    async def rebuilt() -> bool:
        return len(proxy.listening) == 2

    await eventually(rebuilt)  # the job may have been found before that by a look that belongs to the start
    await sql.until(await sql.value(_enqueue), "succeeded", within_s=10)
    assert await program.stop() == 0
