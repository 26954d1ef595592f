"""C42, payload: a NUL (or a lone surrogate) in a text is an opaque database error, or a finished job that is stuck.

JSON columns hold neither. Through every door it is refused with the path to it; in a result it becomes a stored form.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

import agentrt
from agentrt import PayloadInvalid, Retry, agent, step
from tests.cases.doors import failed_at_once, insert, refused_by_the_command_line
from tests.conftest import Start, supervising
from tests.support import Sql

pytestmark = pytest.mark.case
quick = Retry(max_attempts=3, base_s=0.05, factor=1)
bad_texts = ["a\x00b", "a\ud800b"]
bad_arguments: list[tuple[dict[str, Any], str]] = [
    ({"text": "a\x00b"}, "text"),
    ({"text": "a\ud800b"}, "text"),
    ({"nest": {"list": [1, {"deep": "a\x00b"}]}}, "nest.list[1].deep"),
    ({"nest": {"list": [1, {"deep": "a\ud800b"}]}}, "nest.list[1].deep"),
    ({"nest": {"a\x00b": 1}}, "nest.'a\\x00b'"),
    ({"nest": {"a\ud800b": 1}}, "nest.'a\\ud800b'"),
]


@agent(retry=quick)
async def anything(text: Any = None, nest: Any = None) -> None: ...


@agent(retry=quick)
async def echo(text: str) -> str:
    return text


@agent(retry=quick)
async def nested_result(bad: str) -> dict[str, Any]:
    return {"fine": 1, "list": ["x", json.loads(bad)], json.loads(bad): 2}


@agent(retry=quick)
async def in_a_step(bad: str) -> None:
    async def fetch() -> str:
        text: str = json.loads(bad)
        return text

    await step(fetch)


@agent(retry=quick)
async def under_a_step_name(bad: str) -> None:
    async def fetch() -> int:
        return 1

    await step(fetch, name=json.loads(bad))


@agent(retry=quick)
async def to_another(bad: str, ask: bool) -> None:
    if ask:
        await echo.ask(json.loads(bad))
    else:
        await echo.send(json.loads(bad))


agents: list[agentrt.Agent[..., Any]] = [anything, echo, nested_result, in_a_step, under_a_step_name, to_another]


@pytest.mark.parametrize(("arguments", "path"), bad_arguments, ids=ascii)
async def test_a_message_with_it_is_refused_with_its_path_and_nothing_is_sent(
    arguments: dict[str, Any], path: str, client: agentrt.Client, sql: Sql
) -> None:
    for address in (anything, agentrt.to("anything")):
        with pytest.raises(PayloadInvalid, match=r"NUL|surrogate") as refused:
            await address.send(**arguments)
        assert refused.value.path == f"anything.{path}"
        with pytest.raises(PayloadInvalid):
            await address.ask(**arguments)
    with pytest.raises(PayloadInvalid):
        await agentrt.send_many([anything.message(text="fine"), anything.message(**arguments)])
    assert await sql.value("select count(*) from agentrt.all_jobs") == 0


@pytest.mark.parametrize("bad", bad_texts, ids=ascii)
async def test_the_command_line_refuses_it_in_one_line(
    bad: str, start: Start, client: agentrt.Client, sql: Sql
) -> None:
    for payload in ({"text": bad}, {"nest": [{bad: 1}]}):
        line = await refused_by_the_command_line(start, sql, "anything", json.dumps(payload))
        assert next(iter(payload)) in line
    line = await refused_by_the_command_line(start, sql, "anything", f"text={json.dumps(bad)}")
    assert "anything.text" in line


@pytest.mark.parametrize("bad", bad_texts, ids=ascii)
@pytest.mark.parametrize("name", ["key", "dedup"])
async def test_a_key_or_dedup_with_it_is_refused(name: str, bad: str, client: agentrt.Client) -> None:
    with pytest.raises(agentrt.UsageError, match=name):
        echo.options(**{name: bad})
    with pytest.raises(agentrt.UsageError, match="agent name"):
        agentrt.to(bad)


async def test_a_row_by_plain_sql_with_it_ends_and_is_never_stuck(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    async with supervising(database, *agents, poll_s=600):
        nul = await insert(
            sql, "echo", r'{"text": "a\u0000b"}'
        )  # a json column takes the escape; as a result it is refused
        assert "NUL" in await failed_at_once(sql, nul, "unstorable")
        taken = await insert(sql, "anything", r'{"text": "a\u0000b"}')
        await sql.until(taken, "succeeded", within_s=15)
        for payload in (
            r'{"text": "a\ud800b"}',
            r'{"text": "\udc00"}',
            r'{"te\ud800xt": "x"}',
            r'{"nest": {"\ud800": 1}}',
        ):
            for name in ("echo", "anything"):
                assert name in await failed_at_once(sql, await insert(sql, name, payload), "invalid")


@pytest.mark.parametrize(
    "payload",
    [
        "null",
        "[]",
        '"text"',
        "5",
        "{}",
        '{"text": 5}',
        '{"text": null}',
        '{"text": "x", "more": 1}',
        '{"TEXT": "x"}',
        '{"text": ' + "[" * 3_000 + "]" * 3_000 + "}",
        '{"text": ["' + "x" * 100_000 + '"]}',
    ],
    ids=lambda payload: payload[:20],
)
async def test_a_row_by_plain_sql_that_does_not_fit_the_schema_fails_at_once_in_one_line(
    payload: str, database: str, client: agentrt.Client, sql: Sql
) -> None:
    async with supervising(database, echo, poll_s=600):
        assert "echo" in await failed_at_once(sql, await insert(sql, "echo", payload), "invalid")
        assert await echo.options(timeout_s=10).ask("fine") == "fine"


@pytest.mark.parametrize("bad", bad_texts, ids=ascii)
async def test_a_result_with_it_fails_the_job_and_is_kept_in_a_marked_form(
    bad: str, database: str, client: agentrt.Client, sql: Sql
) -> None:
    async with supervising(database, *agents, poll_s=600):
        job = await nested_result.send(json.dumps(bad))
        error = await failed_at_once(sql, job.id, "unstorable")
        assert "result of nested_result" in error
    stored = json.loads(await sql.value("select result::text from agentrt.history where id = $1", job.id))
    spelled = bad.replace("\x00", "\\x00").replace("\ud800", "\\ud800")
    assert stored == {"fine": 1, "list": ["x", {"$unstorable": repr(bad)}], spelled: 2}


@pytest.mark.parametrize("bad", bad_texts, ids=ascii)
async def test_a_step_result_with_it_fails_the_job_and_names_the_step(
    bad: str, database: str, client: agentrt.Client, sql: Sql
) -> None:
    async with supervising(database, *agents, poll_s=600):
        job = await in_a_step.send(json.dumps(bad))
        assert "step fetch#0" in await failed_at_once(sql, job.id, "fatal")
        named = await under_a_step_name.send(json.dumps(bad))
        row = await sql.until(named.id, "failed", "succeeded", within_s=15)
        assert row["state"] == "failed"


@pytest.mark.parametrize("ask", [False, True], ids=["send", "ask"])
@pytest.mark.parametrize("bad", bad_texts, ids=ascii)
async def test_a_message_with_it_between_agents_is_refused_in_the_sender(
    bad: str, ask: bool, database: str, client: agentrt.Client, sql: Sql
) -> None:
    async with supervising(database, *agents, poll_s=600):
        job = await to_another.send(json.dumps(bad), ask)
        with pytest.raises(agentrt.JobFailed, match=r"PayloadInvalid: echo\.text"):
            await job.result(timeout_s=15)
    assert await sql.value("select count(*) from agentrt.all_jobs where job_type = 'echo'") == 0
