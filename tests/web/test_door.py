"""The door: whom it answers what, and that nothing which goes wrong at it reaches the supervisor."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

import agentrt
from agentrt import ConfigError, agent
from agentrt.config import Settings
from agentrt.engine.supervisor import Supervisor
from agentrt.store.postgres import PostgresStore
from agentrt.web import serving
from tests.conftest import Start
from tests.support import Sql, eventually
from tests.web.conftest import Door, Open, door_of

nowhere = "postgresql://nobody@127.0.0.1:1/nothing"
paths = ("", "healthz", "readyz", "metrics", "state.json")


@agent
async def echo(x: int) -> int:
    return x


@pytest.fixture
async def door_without_database() -> AsyncIterator[Door]:
    store = PostgresStore(nowhere)
    async with door_of(Supervisor({"echo": echo}, store, Settings()), store) as door:
        yield door


async def test_a_supervisor_is_ready_from_its_start_until_it_drains(opened: Open, client: agentrt.Client) -> None:
    release = asyncio.Event()

    @agent
    async def held() -> None:
        await release.wait()

    async with opened(echo, held) as door:
        assert (await door.ask("healthz"))[:2] == (200, "ok\n")

        async def ready() -> bool:
            return (await door.ask("readyz"))[0] == 200

        await eventually(ready)
        assert await door.json("readyz") == door.supervisor.health()
        await held.send()

        async def running() -> bool:
            return door.supervisor.running_jobs == 1

        await eventually(running)
        door.supervisor.drain()
        status, text, _ = await door.ask("readyz")
        assert status == 503
        assert '"accepting": false' in text
        assert (await door.ask("healthz"))[0] == 200
        release.set()


async def test_without_a_database_the_door_still_answers(door_without_database: Door) -> None:
    door = door_without_database
    assert (await door.ask("healthz"))[0] == 200
    assert (await door.ask("readyz"))[0] == 503
    status, text, _ = await door.ask("metrics")
    assert (status, "agentrt_ready 0.0" in text, "agentrt_unfinished_jobs{" in text) == (200, True, False)
    state = await door.json("state.json")
    assert "cannot be reached" in state["problem"]
    assert "jobs" not in state
    assert state["process"]["health"]["ok"] is False


async def test_whatever_is_not_a_get_is_refused_and_changes_nothing(
    opened: Open, client: agentrt.Client, sql: Sql
) -> None:
    job = await agentrt.to("nobody").send()
    before = await sql.job(job.id)
    async with opened(echo) as door:
        for path in paths:
            for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
                assert (await door.ask(path, method))[0] == 405, (method, path)
            assert (await door.ask(path, "HEAD"))[0] in (200, 503)
        assert (await door.ask("job/1"))[0] == 404
    assert await sql.job(job.id) == before


async def test_a_request_that_fails_is_answered_and_the_next_one_is_served(
    opened: Open, monkeypatch: pytest.MonkeyPatch, client: agentrt.Client
) -> None:
    async with opened(echo) as door:
        with monkeypatch.context() as patch:
            patch.setattr(door.supervisor, "health", lambda: 1 // 0)
            status, text, _ = await door.ask("readyz")
            assert status == 500
            assert "ZeroDivisionError" not in text
        assert (await door.ask("readyz"))[0] in (200, 503)
        assert await echo.ask(3) == 3


async def test_what_is_not_http_is_refused_and_disturbs_nothing(opened: Open, client: agentrt.Client) -> None:
    async with opened(echo) as door:
        host, port = door.url[len("http://") : -1].split(":")
        tls = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"
        for garbage in (tls, b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 100_000):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(garbage)
            writer.write_eof()
            answer = await asyncio.wait_for(reader.read(), 20)
            assert b" 400 " in answer.split(b"\r\n")[0] or answer == b""
            writer.close()
        assert await echo.ask(3) == 3
        assert (await door.ask("healthz"))[0] == 200


async def test_clients_that_hang_do_not_hold_up_the_end(database: str) -> None:
    store = PostgresStore(database)
    writers = []
    async with serving("127.0.0.1:0", Supervisor({"echo": echo}, store, Settings()), store) as url:
        host, port = url[len("http://") : -1].split(":")
        for sent in (b"", b"GET / HT", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\nabc"):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            await writer.drain()
            writers.append(writer)
        ended_at = time.monotonic()
    assert time.monotonic() - ended_at < 10
    for writer in writers:
        writer.close()


@pytest.mark.parametrize(
    "address",
    [
        "8080",
        ":8080",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:65536",
        "127.0.0.1:http",
        "::1:80",
        "[::1]",
        "[]:80",
        "http://127.0.0.1:80",
        "a b:80",
        "me@host:80",
        "a..b:80",
        "",
    ],
)
async def test_a_bad_address_is_one_line_that_shows_it(address: str) -> None:
    store = PostgresStore(nowhere)
    with pytest.raises(ConfigError) as caught:
        async with serving(address, Supervisor({"echo": echo}, store, Settings()), store):
            pass
    assert address in str(caught.value)
    assert "--http" in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_port_in_use_is_one_line_that_names_it(door_without_database: Door) -> None:
    address = door_without_database.url[len("http://") : -1]
    store = PostgresStore(nowhere)
    with pytest.raises(ConfigError, match=f"{address} cannot be listened on: Address already in use"):
        async with serving(address, door_without_database.supervisor, store):
            pass
    assert (await door_without_database.ask("healthz"))[0] == 200


@pytest.mark.parametrize("missing", ["aiohttp", "prometheus_client"])
async def test_a_missing_extra_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("agentrt.web.", missing))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    store = PostgresStore(nowhere)
    with pytest.raises(ConfigError, match=rf"{missing}.*pip install 'agentrt\[http\]'"):
        async with serving("127.0.0.1:0", Supervisor({"echo": echo}, store, Settings()), store):
            pass


@asynccontextmanager
async def keeping_a_connection(url: str) -> AsyncIterator[None]:
    async with aiohttp.ClientSession() as session:
        async with session.get(url + "healthz") as answer:
            assert await answer.text() == "ok\n"
        yield


source = "from agentrt import agent\n\n@agent\nasync def echo(x: int) -> int:\n    return x\n"


async def test_a_process_with_a_door_drains_and_exits_0_while_a_client_stays_connected(start: Start) -> None:
    program = start("run", "agents.py", "--http", "127.0.0.1:0", source=source)
    (serving_at,) = await program.until("http.serving")
    await program.until("supervisor.started")
    async with keeping_a_connection(serving_at["url"]):
        assert await program.stop() == 0
    assert "Traceback" not in program.log()


async def test_a_process_whose_port_is_in_use_says_so_and_exits_2(start: Start, door_without_database: Door) -> None:
    address = door_without_database.url[len("http://") : -1]
    program = start("run", "agents.py", "--http", address, source=source)
    assert await program.ended() == 2
    assert "Address already in use" in program.log()
    assert "Traceback" not in program.log()
