"""C23, retry: an error whose text the database cannot hold is itself lost, and the job stays running for ever."""

from __future__ import annotations

import asyncio

import pytest

import agentrt
from agentrt import Fail, Retry, RetryAfter, agent
from tests.conftest import supervising
from tests.support import Sql, eventually

pytestmark = pytest.mark.case
twice = Retry(max_attempts=2, base_s=0.05, factor=1)
texts = {"a\x00b": "a\\x00b", "a\ud800b": "a\\ud800b", "\x00\udfff😀": "\\x00\\udfff😀"}


class Odd(Exception):
    """Its class has a name that no column holds."""


Odd.__qualname__ = "O\x00dd"


class Odder(Exception): ...


Odder.__qualname__ = "O\ud800dd"


@agent(retry=twice)
async def broken(text: str) -> None:
    raise ValueError(texts_raw[int(text)])


texts_raw = list(texts)


@agent(retry=twice)
async def chained(text: str) -> None:
    try:
        raise KeyError(texts_raw[int(text)])
    except KeyError as error:
        raise RuntimeError("outer") from error


@agent(retry=twice)
async def hopeless(text: str) -> None:
    raise Fail(texts_raw[int(text)])


@pytest.mark.parametrize("number", range(len(texts)), ids=lambda n: ascii(texts_raw[n]))
async def test_a_failure_whose_text_cannot_be_stored_is_kept_with_the_bad_characters_spelled_out(
    number: int, database: str, client: agentrt.Client, sql: Sql
) -> None:
    shown = texts[texts_raw[number]]
    async with supervising(database, broken, chained, hopeless, poll_s=600):
        with pytest.raises(agentrt.JobFailed) as failed:
            await broken.options(timeout_s=10).ask(str(number))
        assert failed.value.error == f"ValueError: {shown}"
        attempts = await sql.rows("select attempt, text, traceback from agentrt.attempts order by fence")
        assert [(row["attempt"], row["text"]) for row in attempts] == [(1, shown), (2, shown)]
        assert all(shown in row["traceback"] for row in attempts)

        with pytest.raises(agentrt.JobFailed, match="RuntimeError: outer"):
            await chained.options(timeout_s=10).ask(str(number))
        with pytest.raises(agentrt.JobFailed) as failed:
            await hopeless.options(timeout_s=10).ask(str(number))
        assert failed.value.error.endswith(shown)


@pytest.mark.parametrize("kind", [Odd, Odder], ids=lambda kind: ascii(kind.__qualname__))
async def test_a_failure_whose_class_name_cannot_be_stored_is_kept(
    kind: type[Exception], database: str, client: agentrt.Client, sql: Sql
) -> None:
    @agent(retry=twice)
    async def odd() -> None:
        raise kind("its text is fine")

    async with supervising(database, odd, poll_s=600):
        with pytest.raises(agentrt.JobFailed, match="its text is fine"):
            await odd.options(timeout_s=10).ask()
    assert await sql.value("select count(*) from agentrt.attempts") == 2


async def test_a_postponement_and_a_cancel_whose_reasons_cannot_be_stored_are_kept(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    calls: list[int] = []

    @agent(retry=twice)
    async def later() -> None:
        calls.append(agentrt.current().attempt)
        if len(calls) == 1:
            raise RetryAfter(0.05, "limit\x00\ud800")
        await asyncio.sleep(600)

    async def called_again() -> bool:
        return len(calls) == 2

    async with supervising(database, later, poll_s=600):
        job = await later.send()
        await eventually(called_again, within_s=20)
        assert await sql.value("select last_error from agentrt.jobs") == "RetryAfter: limit\\x00\\ud800"
        await job.cancel("why\x00not\ud800")
        with pytest.raises(agentrt.JobCancelled, match=r"why\\x00not\\ud800"):
            await job.result(timeout_s=10)
