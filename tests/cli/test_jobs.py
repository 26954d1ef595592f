"""`agentrt jobs`, `show`, `retry`, `cancel`: what people and pipes get to see, and ids that are all tried."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import termios

import pytest

from agentrt import Retry, agent, step
from agentrt.client import Client
from agentrt.errors import JobFailed
from tests.cli.conftest import Cli, Here
from tests.conftest import supervising
from tests.support import Sql

error = "ValueError: first line\n\x1b[2Jsecond line " + "x" * 300
colour = re.compile(r"\x1b\[[0-9;]*m")


async def write(text: str) -> dict[str, str]:
    return {"wrote": text}


@agent(retry=Retry(max_attempts=2, base_s=0.01))
async def writer(text: str) -> str:
    await step(write, text)
    if text == "bad":
        raise ValueError("first line\nsecond line")
    return text * 2


async def add(sql: Sql, agent: str = "writer", **columns: object) -> int:
    names = ["agent", *columns]
    values = [agent, *columns.values()]
    places = ", ".join(f"${n + 1}" for n in range(len(values)))
    job_id: int = await sql.value(
        f"insert into agentrt.jobs({', '.join(names)}) values ({places}) returning id", *values
    )
    return job_id


def on_terminal(cli: Cli, columns: int, *arguments: str, environ: dict[str, str]) -> str:
    """What the program prints on a terminal of this width."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        cli.command(*arguments), cwd=cli.folder, env={**cli.environ, **environ}, stdin=theirs, stdout=theirs
    )
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:  # Linux says that the other side is closed
        pass
    os.close(ours)
    assert process.wait() == 0
    return shown.decode()


async def test_a_terminal_gets_lines_of_its_width_and_a_pipe_gets_them_whole(cli: Cli, sql: Sql) -> None:
    await add(sql, last_error=error)
    whole = "ValueError: first line \\x1b[2Jsecond line " + "x" * 300
    piped, shown, plain = await asyncio.gather(
        cli("jobs"),
        asyncio.to_thread(on_terminal, cli, 90, "jobs", environ={"TERM": "xterm-256color"}),
        asyncio.to_thread(on_terminal, cli, 90, "jobs", environ={"TERM": "xterm-256color", "NO_COLOR": "1"}),
    )
    assert piped.out.splitlines()[1].endswith(whole)
    assert "\x1b" not in piped.out
    assert "\x1b[34mready" in shown
    assert "\x1b[34m" not in plain
    for text in (shown, plain):
        lines = colour.sub("", text).splitlines()
        assert len(lines) == 2
        assert all(len(line) <= 90 for line in lines)
        assert "ValueError: first line \\x1b[2J" in lines[1]
        assert lines[1].rstrip().endswith("…")


async def test_jobs_lists_the_newest_that_match(cli: Cli, sql: Sql) -> None:
    ids = [await add(sql, key=key) for key in ("a", "a", "b")]
    await add(sql, agent="other")
    newest, keyed, pending, none = await asyncio.gather(
        cli("jobs", "--limit", "1"),
        cli("jobs", "--agent", "writer", "--key", "a", "--json"),
        cli("jobs", "--state", "blocked", "--json"),
        cli("jobs", "--state", "failed"),
    )
    assert len(newest.out.splitlines()) == 2
    assert "--limit shows more" in newest.err
    assert [row["id"] for row in keyed.value] == [ids[1], ids[0]]
    assert [(row["id"], row["state"], row["agent"]) for row in pending.value] == [(ids[1], "blocked", "writer")]
    assert (none.code, none.out) == (0, "")
    assert "no job matches" in none.err


@pytest.mark.case("C44")
async def test_a_listing_survives_rows_that_only_plain_sql_can_make(cli: Cli, sql: Sql) -> None:
    payload = '{"i": 123456789012345678901234567890, "big": 1e999, "text": "\\ud800\\u0000"}'
    number = '{"n": ' + "9" * 5000 + "}"
    await sql.run(
        "insert into agentrt.jobs(agent, payload, run_after) values ('a', $1::text::json, 'infinity')", payload
    )
    await sql.run(
        "insert into agentrt.jobs(agent, payload, run_after) values ('a', $1::text::json, '-infinity')", number
    )
    await add(sql, agent="evil\x1b[2J\u202e", key="two\nlines")
    evil, first, second = [row["id"] for row in await sql.rows("select id from agentrt.jobs order by agent = 'a', id")]
    listed, listed_json, shown, shown_json, long = await asyncio.gather(
        cli("jobs"),
        cli("jobs", "--json"),
        cli("show", first),
        cli("show", first, "--json"),
        cli("show", second, "--json"),
    )
    assert {done.code for done in (listed, listed_json, shown, shown_json, long)} == {0}
    assert len(listed.out.splitlines()) == 4
    assert "\x1b" not in listed.out
    assert "\u202e" not in listed.out
    assert {row["id"] for row in listed_json.value} == {evil, first, second}
    assert "due         infinity" in shown.out
    value = {"i": 123456789012345678901234567890, "big": "1e999", "text": "\ud800\x00"}
    assert shown_json.value["payload"] == value
    assert long.value["payload"] == {"n": "9" * 5000}


async def test_show_tells_all_that_is_kept(cli: Cli, client: Client, database: str) -> None:
    async with supervising(database, writer):
        good = await writer["k"].send("ok")
        assert await good.result(timeout_s=30) == "okok"
        bad = await writer.send("bad")
        with pytest.raises(JobFailed):
            await bad.result(timeout_s=30)
    table, verbose, value = await asyncio.gather(
        cli("show", good.id), cli("show", bad.id, "--verbose"), cli("show", bad.id, "--json")
    )
    for text in ('"text": "ok"', '"okok"', "key         k", "recorded steps", '{"wrote":"ok"}', "attempt     1 of 2"):
        assert text in table.out
    assert "ValueError: first line second line" in verbose.out
    assert verbose.out.count("Traceback (most recent call last)") == 2
    assert [attempt["text"] for attempt in value.value["attempts"]] == ["first line\nsecond line"] * 2
    assert [recorded["output"] for recorded in value.value["steps"]] == [{"wrote": "bad"}]
    assert value.value["payload"] == {"text": "bad"}


async def test_every_id_is_tried_and_one_that_cannot_be_makes_the_exit_code_1(cli: Cli, sql: Sql) -> None:
    ready, delayed = await add(sql), await add(sql)
    await sql.run(
        "update agentrt.jobs set status = 'scheduled', run_after = now() + interval '1 day' where id = $1", delayed
    )
    done = await add(sql)
    await sql.run("update agentrt.jobs set status = 'running', fence = 1, attempt = 1 where id = $1", done)
    await sql.run(
        "select agentrt.finish(array[$1::bigint], array[1::bigint], array['succeeded'], array['1'], array[null], array[null],"
        " array[null], array[null], array[true], array[null], '{}', '{}', false, false)", done,
    )  # fmt: skip
    retried = await cli("retry", done, 10**9, delayed)
    assert retried.code == 1
    assert f"job {done} cannot be run again: it is succeeded" in retried.err
    assert "There is no job 1000000000" in retried.err
    assert await sql.state(delayed) == "ready"
    cancelled = await cli("cancel", done, 10**9, ready, delayed, "--reason", "too slow")
    assert cancelled.code == 1
    assert f"job {done} cannot be cancelled: it has already succeeded" in cancelled.err
    assert [await sql.state(job_id) for job_id in (ready, delayed, done)] == ["cancelled", "cancelled", "succeeded"]
    assert (await sql.job(ready))["last_error"] == "too slow"
    again, retried = await cli("cancel", ready), await cli("retry", ready, delayed)
    assert (again.code, retried.code) == (0, 0)  # what was asked for is so
    assert [await sql.state(job_id) for job_id in (ready, delayed)] == ["ready", "ready"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["show", "x"], "'x' is no job id"),
        (["show", "\x1b[2J"], "'\\x1b[2J' is no job id"),
        (["why", "0"], "is no job id"),
        (["why", "9223372036854775808"], "is no job id"),
        (["retry", ""], "is no job id"),
        (["cancel", "1", "１"], "is no job id"),
        (
            ["jobs", "--state", "done"],
            "States: scheduled, ready, blocked, running, parked, succeeded, failed, cancelled",
        ),
        (["jobs", "--limit", "0"], "--limit is 0"),
        (["jobs", "--key", ""], "--key is ''"),
        (["jobs", "--agent", "\udcff"], "lone surrogate"),
        (["jobs", "--schema", 'a"b'], "not usable"),
        (["jobs", "--database", "elsewhere"], "unknown form"),
    ],
)
def test_values_that_cannot_be_are_refused_in_one_line(words: list[str], expected: str, here: Here) -> None:
    assert expected in here(*words).refused(2)


async def test_a_reader_that_has_gone_is_no_error(cli: Cli, sql: Sql) -> None:
    await add(sql, last_error=error)
    reader, writer_end = os.pipe()
    os.close(reader)
    process = await asyncio.create_subprocess_exec(
        *cli.command("jobs"), cwd=cli.folder, env=cli.environ, stdout=writer_end, stderr=asyncio.subprocess.PIPE
    )
    os.close(writer_end)
    _, err = await process.communicate()
    assert err == b""


async def test_an_output_that_cannot_show_a_character_gets_its_escape(cli: Cli, sql: Sql) -> None:
    job_id = await add(sql, payload=json.dumps({"text": "é"}, ensure_ascii=False))
    cli.environ["PYTHONIOENCODING"] = "ascii"
    shown, value = await asyncio.gather(cli("show", job_id), cli("show", job_id, "--json"))
    assert (shown.code, value.code) == (0, 0)
    assert '"text": "\\xe9"' in shown.out
    assert value.value["payload"] == {"text": "é"}


@pytest.mark.parametrize("options", [[], ["--json"]])
async def test_an_output_that_is_stopped_half_way_comes_whole(cli: Cli, sql: Sql, options: list[str]) -> None:
    """As by Ctrl-Z, or when the machine is frozen. A pipe takes 64 KiB at once."""
    await sql.run(
        "insert into agentrt.jobs(agent, last_error) select 'a', repeat('x', 1000) from generate_series(1, 400)"
    )
    environ = {**cli.environ, "PYTHONUNBUFFERED": "1"}
    command = cli.command("jobs", "--limit", "1000", *options)

    def stopped_half_way() -> str:
        with subprocess.Popen(command, cwd=cli.folder, env=environ, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            first = process.stdout.read(1)  # it writes, and waits for a reader
            process.send_signal(signal.SIGSTOP)
            process.send_signal(signal.SIGCONT)
            rest = process.stdout.read()
        assert process.returncode == 0
        return (first + rest).decode()

    text = await asyncio.to_thread(stopped_half_way)
    assert len(json.loads(text)) == 400 if options else len(text.splitlines()) == 401
