"""C67, observability: the record of an error is empty, is overwritten by a later one, or breaks on the exception itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import agentrt
from agentrt import Retry, RetryAfter, agent
from agentrt.limits import error_chars_max, traceback_chars_max
from tests.conftest import supervising
from tests.support import Sql

pytestmark = pytest.mark.case
quick = Retry(max_attempts=3, base_s=0.05, factor=1)


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class UnreadableByExit(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class UnreadableByCancel(Exception):
    def __str__(self) -> str:
        raise asyncio.CancelledError


class UnreadableNotes(Exception):
    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]  # people do
        raise ValueError("no notes")


@agent(retry=quick)
async def unlucky() -> None:
    attempt = agentrt.current().attempt
    if attempt == 1:
        raise ValueError
    if attempt == 2:
        try:
            raise KeyError("the cause")
        except KeyError as error:
            raise RuntimeError("the effect") from error
    raise Unreadable


@agent(retry=Retry(max_attempts=1))
async def long_winded(letter: str) -> None:
    raise ValueError(letter * 5_000_000)


@agent
async def neighbour(n: int) -> int:
    await asyncio.sleep(0.2)
    return n


async def test_each_attempt_is_kept_with_class_text_cause_traceback_and_time(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    async with supervising(database, unlucky, poll_s=600):
        with pytest.raises(agentrt.JobFailed, match="Unreadable: <its text cannot be read>"):
            await unlucky.options(timeout_s=10).ask()
    rows = await sql.rows("select * from agentrt.attempts order by fence")
    assert [(row["attempt"], row["reason"], row["kind"].rpartition(".")[2], row["text"]) for row in rows] == [
        (1, "error", "ValueError", ""),
        (2, "error", "RuntimeError", "the effect"),
        (3, "error", "Unreadable", "<its text cannot be read>"),
    ]
    assert all("test_c67.py" in row["traceback"] and row["claimed_at"] < row["ended_at"] for row in rows)
    assert "KeyError: 'the cause'" in rows[1]["traceback"]
    assert "direct cause" in rows[1]["traceback"]


@pytest.mark.parametrize("letter", ["x", "é"])
async def test_a_long_text_is_cut_with_a_mark(letter: str, database: str, client: agentrt.Client, sql: Sql) -> None:
    async with supervising(database, long_winded, poll_s=600):
        with pytest.raises(agentrt.JobFailed):
            await long_winded.options(timeout_s=30).ask(letter)
    (row,) = await sql.rows("select text, traceback from agentrt.attempts")
    for text, chars_max in ((row["text"], error_chars_max), (row["traceback"], traceback_chars_max)):
        assert chars_max <= len(text) < chars_max + 100
        assert "cut:" in text[chars_max:]
    assert "test_c67.py" in row["traceback"]


seconds_given: list[Any] = ["soon", None, 10**400, float("nan"), -1, float("inf")]
raisers: dict[str, Callable[[], BaseException]] = {
    "unreadable text": Unreadable,
    "text that exits": UnreadableByExit,
    "text that cancels": UnreadableByCancel,
    "unreadable notes": UnreadableNotes,
    **{f"later, {str(seconds)[:9]}": partial(RetryAfter, seconds, "as the header says") for seconds in seconds_given},
}


@pytest.mark.parametrize("name", raisers)
async def test_an_exception_that_cannot_be_read_ends_its_attempt_and_nothing_else(
    name: str, database: str, client: agentrt.Client, sql: Sql
) -> None:
    calls: list[str] = []

    @agent(retry=Retry(max_attempts=1))
    async def strange() -> None:
        calls.append(name)
        if len(calls) == 1:
            raise raisers[name]()

    async with supervising(database, strange, neighbour, poll_s=600) as supervisor:
        beside = [await neighbour.send(n) for n in range(5)]
        job = await strange.send()
        ended: dict[str, Any] = await sql.until(job.id, "succeeded", "failed", "scheduled", within_s=20)
        if name.startswith("later"):
            assert ended["state"] == "failed" or ended["last_error"].startswith("RetryAfter")
        else:
            assert ended["state"] == "failed"
            assert "Unreadable" in ended["last_error"]
        assert [await other.result(timeout_s=10) for other in beside] == list(range(5))
        assert supervisor.health()["ok"]
        await job.cancel()
