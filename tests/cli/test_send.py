"""`agentrt send`: what is typed becomes exactly one message, or is refused before anything is sent."""

from __future__ import annotations

import asyncio
import json
import signal
from asyncio.subprocess import PIPE
from datetime import timedelta
from pathlib import Path

import pytest

from agentrt import Fail, agent
from tests.cli.conftest import Cli, Here
from tests.conftest import supervising
from tests.support import Sql

nowhere = "postgresql://nobody@127.0.0.1:1/nowhere"  # a command that asks it ends with exit code 3
module = """
from datetime import date
from agentrt import agent

@agent
async def diary(day: date, tags: list[str]) -> date:
    return day
"""


@agent
async def greet(name: str) -> dict[str, str]:
    return {"hello": name}


@agent
async def hopeless() -> None:
    raise Fail("the account is closed\nfor good")


@agent
async def endless() -> None:
    await asyncio.Event().wait()


async def test_a_message_is_the_same_however_it_is_typed(cli: Cli, sql: Sql) -> None:
    message = {"text": "hi é", "n": 3, "quoted": "3", "tags": ["a"], "none": None}
    written = json.dumps(message)
    sends = await asyncio.gather(
        cli("send", "nobody", written),
        cli("send", "nobody", "-", given=b"\xef\xbb\xbf " + json.dumps(message, indent=4).encode()),
        cli("send", "nobody", "text=hi é", "n=3", 'quoted="3"', 'tags=["a"]', "none=null"),
    )
    assert [sent.code for sent in sends] == [0, 0, 0], sends
    rows = await sql.rows("select id, payload from agentrt.jobs order by id")
    assert [json.loads(row["payload"]) for row in rows] == [message] * 3
    assert sorted(int(sent.out) for sent in sends) == [row["id"] for row in rows]


refused: list[tuple[list[str], str]] = [
    (["[1]"], "an array, not a JSON object"),
    (['{"a": NaN}'], "NaN has no form in JSON"),
    (['{"a": ["\\u0000"]}'], "a[0]: the text holds a NUL"),
    (['{"a": "\\ud800"}'], "lone surrogate"),
    (["a=\udcff"], "lone surrogate"),  # a byte of the command line that is no UTF-8
    (["a=18446744073709551616"], "at most 64"),
    (["a=" + "9" * 5000], "5,000 digits"),
    (["a=1e999"], "inf has no form in JSON"),
    (["a=1", "a=2"], "'a' is given twice"),
    (['{"a": 1, "a": 2}'], "names 'a' twice"),
    (["a=1", "b"], "'b' is no NAME=VALUE pair"),
    (["self=1"], "cannot have this name"),
    (["--at", "2026-01-01T00:00"], "without a time zone"),
    (["--at", "soon"], "--at is 'soon'"),
    (["--at", "2027-01-01T00:00Z", "--delay", "3"], "exclude each other"),
    (["--delay", "nan"], "delay_s is nan"),
    (["--priority", "12"], "priority is 12"),
    (["--timeout", "3"], "add --wait"),
    (["--key", ""], "key is ''"),
]
refused_input = [
    (json.dumps({"a": "x" * 1_100_000}).encode(), "at most 1,048,576"),
    (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    (b" " * 9_000_000, "Standard input is over 8,388,608 bytes"),
    (b"\xff", "not UTF-8: byte 0 is 0xff"),
    (b"", "no JSON"),
]


@pytest.mark.parametrize(
    ("words", "given", "expected"),
    [(words, b"", text) for words, text in refused] + [(["-"], given, text) for given, text in refused_input],
    ids=range(len(refused) + len(refused_input)),
)
def test_what_no_message_can_hold_is_refused_in_one_line_before_the_database_is_asked(
    words: list[str], given: bytes, expected: str, here: Here
) -> None:
    assert expected in here("send", "nobody", *words, "--database", nowhere, given=given).refused(2)


async def test_from_checks_the_message_against_the_agent_and_sends_its_arguments(
    cli: Cli, sql: Sql, tmp_path: Path
) -> None:
    (tmp_path / "zoo.py").write_text(module)
    assert (await cli("send", "diary", '{"day": "2026-01-31", "tags": []}', "--from", "zoo")).code == 0
    (row,) = await sql.rows("select payload from agentrt.jobs")
    assert json.loads(row["payload"]) == {"day": "2026-01-31", "tags": []}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["diary", '{"day": "2026-02-31", "tags": []}'], "diary.day"),
        (["diary", "day=2026-01-31"], "diary.tags: Field required"),
        (["diary", "day=2026-01-31", "tags=[]", "x=1"], "diary.x"),
        (["dairy"], "Its agents: diary"),
    ],
)
def test_from_refuses_what_the_agent_would_refuse_before_the_database_is_asked(
    words: list[str], expected: str, here: Here, tmp_path: Path
) -> None:
    (tmp_path / "zoo_here.py").write_text(module)
    done = here("send", *words, "--from", tmp_path / "zoo_here.py", "--database", nowhere)
    assert expected in done.refused(2)


async def test_options_reach_the_job(cli: Cli, sql: Sql) -> None:
    options = ("--key", "k 1", "--priority", "0", "--max-attempts", "7", "--delay", "3600")
    at, delayed = await asyncio.gather(
        cli("send", "nobody", "--at", "2026-12-31T23:30+01:00", "--json"), cli("send", "nobody", *options, "--json")
    )
    assert delayed.value["key"] == "k 1"
    assert delayed.value["state"] == "scheduled"
    row = await sql.job(delayed.value["id"])
    assert (row["key"], row["priority"], row["max_attempts"]) == ("k 1", 0, 7)
    assert timedelta(seconds=3500) < row["run_after"] - row["created_at"] < timedelta(seconds=3700)
    assert (await sql.job(at.value["id"]))["run_after"].isoformat() == "2026-12-31T22:30:00+00:00"


async def test_a_repeated_dedup_sends_nothing_and_names_the_first_job(cli: Cli, sql: Sql) -> None:
    first = await cli("send", "nobody", "a=1", "--dedup", "once")
    again = await cli("send", "nobody", "a=2", "--dedup", "once")
    assert again.code == 0
    assert again.out == first.out
    assert "nothing was sent" in again.err
    assert await sql.value("select count(*) from agentrt.jobs") == 1


async def test_wait_ends_as_the_job_ends(cli: Cli, database: str) -> None:
    async with supervising(database, greet, hopeless, endless):
        good, told, bad, late = await asyncio.gather(
            cli("send", "greet", "name=Ada", "--wait"),
            cli("send", "greet", "name=Ada", "--wait", "--json"),
            cli("send", "hopeless", "--wait", "--timeout", "30"),
            cli("send", "endless", "--wait", "--timeout", "0.2", "--json"),
        )
        assert (good.code, good.value) == (0, {"hello": "Ada"})
        assert "warning" not in good.err
        assert (told.code, told.value["state"], told.value["result"]) == (0, "succeeded", {"hello": "Ada"})
        assert (bad.code, bad.out) == (1, "")
        assert "failed, fatal: agentrt.errors.Fail: the account is closed for good\n" in bad.err
        assert (late.code, late.value["result"]) == (1, None)
        assert "It goes on" in late.err
        assert (await cli("cancel", late.value["id"])).code == 0


async def test_a_message_that_nobody_will_take_is_warned_about(cli: Cli, sql: Sql) -> None:
    await sql.run(
        "insert into agentrt.supervisors(id, host, pid, agents, slots, beat_at) values"
        " (gen_random_uuid(), 'a', 1, '{live}', 1, now()), (gen_random_uuid(), 'b', 2, '{gone}', 1, now() - interval '5 min')"
    )
    live, gone = await asyncio.gather(cli("send", "live"), cli("send", "gone"))
    assert (live.code, live.err) == (0, "")
    assert gone.code == 0
    assert "no running supervisor knows agent 'gone'" in gone.err
    assert "agentrt run" in gone.err


async def test_an_interrupted_wait_ends_without_a_traceback(cli: Cli, sql: Sql) -> None:
    command = cli.command("send", "nobody", "--wait")
    process = await asyncio.create_subprocess_exec(*command, cwd=cli.folder, env=cli.environ, stderr=PIPE)
    assert process.stderr is not None
    while not (await process.stderr.readline()).startswith(b"job "):
        assert process.returncode is None
    process.send_signal(signal.SIGINT)
    assert await process.wait() == 130
    assert b"Traceback" not in await process.stderr.read()
    assert await sql.value("select count(*) from agentrt.jobs") == 1
