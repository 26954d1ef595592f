"""State per key: what a mailbox keeps between its messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

import agentrt
from agentrt import Retry, agent, current, state
from tests.conftest import Start, supervising
from tests.support import Sql

quick = Retry(max_attempts=3, base_s=0.01, factor=1)


@dataclass
class Tally:
    seen: list[int] = field(default_factory=list)


@agent(retry=quick)
async def tally(n: int, fails: int = 0) -> list[int]:
    kept = state(Tally)
    kept.seen.append(n)
    if current().attempt <= fails:
        raise RuntimeError("not this time")
    return kept.seen


async def test_it_is_saved_when_the_job_succeeds_and_only_then(database: str, client: agentrt.Client, sql: Sql) -> None:
    async with supervising(database, tally):
        assert await tally["a"].ask(1) == [1]
        with pytest.raises(agentrt.JobFailed):
            await tally["a"].ask(2, fails=3)
        assert await tally["a"].ask(3, fails=1) == [1, 3]
        assert await tally["b"].ask(4) == [4]
    kept = {row["key"]: row["value"] for row in await sql.rows("select key, value::text from agentrt.states")}
    assert kept == {"a": '{"seen":[1,3]}', "b": '{"seen":[4]}'}


async def test_two_hundred_messages_to_one_key_over_three_processes_lose_none(
    start: Start, client: agentrt.Client, sql: Sql
) -> None:
    source = """
from agentrt import agent, state

@agent
async def count(n: int) -> None:
    kept = state(dict[str, int])
    kept["sum"] = kept.get("sum", 0) + n
    kept["messages"] = kept.get("messages", 0) + 1
"""
    for number in range(3):
        start("run", "agents.py", source=source if number == 0 else None, name=f"worker-{number}")
    count: Any = agentrt.to("count")["one"]
    await agentrt.send_many([count.message(n=n) for n in range(200)])
    await sql.until_none_unfinished(within_s=60)
    assert await sql.value("select value::text from agentrt.states") == f'{{"sum":{sum(range(200))},"messages":200}}'


async def test_it_is_refused_without_a_key_as_another_type_and_as_one_that_cannot_change(
    database: str, client: agentrt.Client
) -> None:
    @agent(retry=quick)
    async def wrong(kind: str) -> None:
        if kind == "another":
            state(Tally)
        state({"none": Tally, "another": dict, "fixed": int}[kind])

    async with supervising(database, wrong):
        for address, kind, text in (
            (wrong, "none", "needs a key"),
            (wrong["k"], "another", "was asked for as"),
            (wrong["k"], "fixed", "which change in place"),
        ):
            with pytest.raises(agentrt.JobFailed, match=text):
                await address.ask(kind)
    assert state(Tally) == Tally(), "outside of a job it is a new one"
