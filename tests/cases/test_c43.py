"""C43, payload: NaN and the infinities become null without a word in one place and are an error of the database in another.

They have no form in JSON: each door refuses them with the path to them, and in a result they become a marked, stored form.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import asyncpg
import pytest

import agentrt
from agentrt import PayloadInvalid, Retry, agent, step
from tests.cases.doors import failed_at_once, insert, refused_by_the_command_line
from tests.conftest import Start, supervising
from tests.support import Sql

pytestmark = pytest.mark.case
quick = Retry(max_attempts=3, base_s=0.05, factor=1)
bad_numbers = [math.nan, math.inf, -math.inf]


@dataclass
class Point:
    x: float


@agent(retry=quick)
async def typed(x: float) -> float:
    return x


@agent(retry=quick)
async def nested(point: Point | None = None, more: dict[str, list[float]] | None = None) -> None: ...


@agent(retry=quick)
async def untyped(x: Any) -> Any:
    return x


@agent(retry=quick)
async def result(text: str) -> Any:
    return {"list": [1.5, float(text)]}


@agent(retry=quick)
async def typed_result(text: str) -> float:
    return float(text)


@agent(retry=quick)
async def in_a_step(text: str) -> None:
    async def measure() -> float:
        return float(text)

    await step(measure)


@agent(retry=quick)
async def exact(amount: Decimal) -> None: ...


agents: list[agentrt.Agent[..., Any]] = [typed, nested, untyped, result, typed_result, in_a_step, exact]


@pytest.mark.parametrize("bad", bad_numbers)
async def test_a_message_with_it_is_refused_with_its_path_the_same_way_everywhere(
    bad: float, client: agentrt.Client, sql: Sql
) -> None:
    refusals: list[tuple[agentrt.Address[..., Any], dict[str, Any], str]] = [
        (typed, {"x": bad}, "typed.x"),
        (untyped, {"x": bad}, "untyped.x"),
        (untyped, {"x": [1.0, {"deep": bad}]}, "untyped.x[1].deep"),
        (nested, {"more": {"list": [1.0, bad]}}, "nested.more.list[1]"),
        (agentrt.to("elsewhere"), {"x": bad}, "elsewhere.x"),
    ]
    for address, arguments, path in refusals:
        with pytest.raises(PayloadInvalid, match="has no form in JSON") as refused:
            await address.send(**arguments)
        assert refused.value.path == path
    with pytest.raises(PayloadInvalid, match=r"nested\.point"):
        await nested.send(point=Point(bad))
    with pytest.raises(PayloadInvalid, match=r"exact\.amount"):
        await exact.send(Decimal(bad))
    assert await sql.value("select count(*) from agentrt.all_jobs") == 0


async def test_the_command_line_refuses_it_in_one_line(start: Start, client: agentrt.Client, sql: Sql) -> None:
    for text in ("NaN", "Infinity", "-Infinity", "1e400", "-1e400"):
        line = await refused_by_the_command_line(start, sql, "untyped", f'{{"x": [{text}]}}')
        assert "no form in JSON" in line


async def test_a_row_by_plain_sql_with_it_is_refused_or_ends_as_failed(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    for text in ("NaN", "Infinity", "-Infinity"):
        with pytest.raises(asyncpg.InvalidTextRepresentationError):
            await insert(sql, "typed", f'{{"x": {text}}}')
    async with supervising(database, *agents, poll_s=600):
        for text in ('"NaN"', "null"):
            assert "typed.x" in await failed_at_once(sql, await insert(sql, "typed", f'{{"x": {text}}}'), "invalid")
        for text in ("1e400", "-1e400"):  # JSON, but no float holds it
            for name in ("typed", "untyped"):
                error = await failed_at_once(sql, await insert(sql, name, f'{{"x": {text}}}'), "invalid")
                assert f"{name}.x" in error


@pytest.mark.parametrize("bad", bad_numbers)
async def test_a_result_with_it_fails_the_job_and_is_kept_in_a_marked_form_never_as_null(
    bad: float, database: str, client: agentrt.Client, sql: Sql
) -> None:
    async with supervising(database, *agents, poll_s=600):
        for returning, path, stored in (
            (result, "result of result.list[1]", {"list": [1.5, {"$unstorable": repr(bad)}]}),
            (typed_result, "result of typed_result", {"$unstorable": repr(bad)}),
        ):
            job = await returning.send(repr(bad))
            assert path in await failed_at_once(sql, job.id, "unstorable")
            assert (
                json.loads(await sql.value("select result::text from agentrt.history where id = $1", job.id)) == stored
            )


@pytest.mark.parametrize("bad", bad_numbers)
async def test_a_step_result_with_it_fails_the_job_and_names_the_step(
    bad: float, database: str, client: agentrt.Client, sql: Sql
) -> None:
    async with supervising(database, *agents, poll_s=600):
        job = await in_a_step.send(repr(bad))
        assert "step measure#0" in await failed_at_once(sql, job.id, "fatal")
    assert await sql.value("select count(*) from agentrt.steps where output is not null") == 0
