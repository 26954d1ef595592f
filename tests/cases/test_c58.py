"""C58, security: the database password is printed at the start, in a failure or at debug level."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

import pytest

from agentrt.cli import main
from tests.cases.own_server import OwnServer
from tests.cases.proxy import Proxy
from tests.conftest import Start

pytestmark = pytest.mark.case
agents = str(Path(__file__).parent / "ledger.py")
words = (
    "quince",
    "walnut",
    "turnip",
    "radish",
    "medlar",
    "sorrel",
    "fennel",
    "damson",
)  # each would give some of it away
password = "{}@{}/{}:{}%41{}#ö{}&='{}\\ \"{}".format(*words)
_leaking = """
import os
from agentrt import agent
@agent
async def leak() -> None:
    raise RuntimeError("no answer from " + os.environ["AGENTRT_DATABASE_URL"])
"""


def _assert_secret(text: str) -> None:
    assert text, "nothing was said at all"
    assert [word for word in words if word in text] == [], text


def _at(dsn: str, host: str) -> str:
    """The same user and password at another server."""
    parts = urlsplit(dsn)
    return urlunsplit((parts.scheme, f"{parts.netloc.rpartition('@')[0]}@{host}", parts.path, "", ""))


async def test_no_output_holds_the_password_while_it_works_through_an_outage_or_in_the_error_of_an_agent(
    own: OwnServer, start: Start
) -> None:
    dsn = await own.require_password("c58", password)
    program = start("run", "agents.py", "--log-level", "debug", source=_leaking, environ={"AGENTRT_DATABASE_URL": dsn})
    await program.until("supervisor.started")
    async with own.sql() as sql:
        job_id = await sql.value("insert into agentrt.jobs(agent, max_attempts) values ('leak', 1) returning id")
        await sql.until(job_id, "failed")
        row = await sql.rows(
            "select last_error, (select string_agg(a::text, '') from agentrt.attempts a) from agentrt.history"
        )
    assert "no answer from postgresql://" in str(row)
    _assert_secret(str(row))

    own.stop()
    await program.until("database.lost")
    own.start()
    await program.until("database.back")
    assert await program.stop() == 0
    _assert_secret(program.log())


async def test_no_output_holds_the_password_when_the_port_is_wrong(own: OwnServer, start: Start) -> None:
    dsn = await own.require_password("c58", password)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = _at(dsn, f"127.0.0.1:{unused.getsockname()[1]}")
        program = start("run", agents, "--log-level", "debug", "--wait", "1", environ={"AGENTRT_DATABASE_URL": closed})
        assert await program.ended() == 3
    _assert_secret(program.log())


@pytest.mark.parametrize("way", ["run", "jobs", "agents", "migrate", "doctor"])
async def test_no_output_holds_the_password_when_it_is_refused(own: OwnServer, start: Start, way: str) -> None:
    dsn = await own.require_password("c58", "another")
    async with Proxy(dsn).running() as proxy:
        wrong = _at(dsn.replace("another", quote(password, safe="")), proxy.dsn.partition("@")[2].partition("/")[0])
        arguments = ["run", agents, "--log-level", "debug"] if way == "run" else [way]
        program = start(*arguments, environ={"AGENTRT_DATABASE_URL": wrong})
        assert await program.ended() in (1, 2)
    assert "authentication" in program.log()
    _assert_secret(program.log())


_malformed = [
    *(f"postgresql://c58:quince{mark}walnut@127.0.0.1:1/x" for mark in "/:@#?[] %&='\\\""),  # should be percent-encoded
    "postgresql://c58:quince@127.0.0.1:port/x",
    "postgresql://c58:quince@127.0.0.1:1/x?connect_timeout=soon",
    "postgresql://127.0.0.1:1/x?user=c58&password=quince",
    "pg://c58:quince@127.0.0.1:1/x",
    "//c58:quince@127.0.0.1:1/x",
    "c58:quince@127.0.0.1:1/x",
    "host=127.0.0.1 port=1 user=c58 password=quince",
    "host=127.0.0.1 port=1 user=c58 password='quince\\' walnut'",
]


@pytest.mark.parametrize("given", ["environment", "option"])
@pytest.mark.parametrize("address", _malformed)
async def test_no_output_holds_a_piece_of_the_password_when_the_address_is_malformed(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, address: str, given: str
) -> None:
    if given == "environment":
        monkeypatch.setenv("AGENTRT_DATABASE_URL", address)
    monkeypatch.setattr("sys.argv", ["agentrt", "migrate", *(["--database", address] if given == "option" else [])])
    with pytest.raises(SystemExit) as ended:
        await asyncio.to_thread(main)
    assert ended.value.code in (2, 3)
    _assert_secret("".join(capfd.readouterr()))
