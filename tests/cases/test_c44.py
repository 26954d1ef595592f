"""C44, payload: an integer beyond 64 bits is an encoder's error, comes back rounded, or one such row breaks every listing."""

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
exact = [2**63 - 1, -(2**63), 2**53 + 1, 0]
too_large = [2**63, 2**64, -(2**70), 10**400, -(10**5_000)]


@agent(retry=quick)
async def typed(n: int) -> int:
    return n


@agent(retry=quick)
async def untyped(n: Any) -> Any:
    return n


@agent(retry=quick)
async def as_float(n: float) -> float:
    return n


@agent(retry=quick)
async def result(which: int) -> Any:
    return [1, too_large[which]]


@agent(retry=quick)
async def typed_result(which: int) -> int:
    return too_large[which]


@agent(retry=quick)
async def in_a_step(which: int) -> None:
    async def count() -> int:
        return too_large[which]

    await step(count)


agents: list[agentrt.Agent[..., Any]] = [typed, untyped, as_float, result, typed_result, in_a_step]


def named(n: int) -> str:
    return f"{n.bit_length()} bits"


async def test_what_fits_64_bits_comes_back_exact(database: str, client: agentrt.Client) -> None:
    async with supervising(database, *agents, poll_s=600):
        for n in exact:
            assert await typed.options(timeout_s=10).ask(n) == n
            assert await untyped.options(timeout_s=10).ask({"list": [n]}) == {"list": [n]}


@pytest.mark.parametrize("n", too_large, ids=named)
async def test_a_message_with_a_larger_one_is_refused_with_its_path_and_nothing_is_sent(
    n: int, client: agentrt.Client, sql: Sql
) -> None:
    for address, arguments, path in (
        (typed, {"n": n}, "typed.n"),
        (untyped, {"n": {"list": [0, n]}}, "untyped.n.list[1]"),
        (agentrt.to("elsewhere"), {"n": n}, "elsewhere.n"),
    ):
        with pytest.raises(PayloadInvalid) as refused:
            await address.send(**arguments)
        assert refused.value.path == path
        assert len(str(refused.value)) < 200
    assert await sql.value("select count(*) from agentrt.all_jobs") == 0


@pytest.mark.parametrize("n", [2**53 + 1, 2**63, 10**400], ids=named)
async def test_an_integer_is_never_rounded_to_a_float(n: int, client: agentrt.Client) -> None:
    with pytest.raises(PayloadInvalid, match=r"as_float\.n"):
        await as_float.send(n)


async def test_the_command_line_refuses_it_in_one_line_and_sends_exact_what_fits(
    start: Start, client: agentrt.Client, sql: Sql
) -> None:
    for n in (2**63, -(2**70), 10**400, "1" * 5_000):
        line = await refused_by_the_command_line(start, sql, "typed", f'{{"n": {n}}}')
        assert "integer" in line.lower()
    command = start("send", "typed", f"n={2**63 - 1}", name="send")
    assert await command.ended() == 0
    assert await sql.value("select payload::text from agentrt.jobs") == f'{{"n":{2**63 - 1}}}'


@pytest.mark.parametrize("which", range(len(too_large)))
async def test_a_result_or_step_with_it_fails_the_job_and_is_kept_in_a_marked_form(
    which: int, database: str, client: agentrt.Client, sql: Sql
) -> None:
    async with supervising(database, *agents, poll_s=600):
        for returning, path in ((result, "result of result[1]"), (typed_result, "result of typed_result")):
            job = await returning.send(which)
            assert path in await failed_at_once(sql, job.id, "unstorable")
            stored = json.loads(await sql.value("select result::text from agentrt.history where id = $1", job.id))
            (mark,) = stored[1:] if returning is result else [stored]
            assert list(mark) == ["$unstorable"]
        job = await in_a_step.send(which)
        assert "step count#0" in await failed_at_once(sql, job.id, "fatal")


async def test_rows_by_plain_sql_with_it_run_exact_or_fail_and_every_listing_goes_on(
    database: str, start: Start, client: agentrt.Client, sql: Sql
) -> None:
    waiting = [await insert(sql, "nobody", f'{{"n": {n}}}') for n in (2**64, 10**400, "9" * 5_000)]
    async with supervising(database, *agents, poll_s=600):
        for n in (2**64, 10**400):
            assert "result of" in await failed_at_once(sql, await insert(sql, "typed", f'{{"n": {n}}}'), "unstorable")
            assert "result of" in await failed_at_once(sql, await insert(sql, "untyped", f'{{"n": {n}}}'), "unstorable")
        ended = await insert(sql, "typed", '{"n": ' + "9" * 5_000 + "}")
        await sql.until(ended, "failed", within_s=15)
    listing = start("jobs", "--json", name="jobs")
    assert await listing.ended() == 0
    assert len(json.loads(listing.log())) == len(waiting) + 5
    for job_id in (*waiting, ended):
        for arguments in (("show", str(job_id)), ("show", str(job_id), "--json"), ("why", str(job_id))):
            command = start(*arguments, name="show")
            assert await command.ended() == 0, command.log()
            assert "Traceback" not in command.log()
