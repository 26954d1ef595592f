"""Steps under a supervisor: values, tries and their waits, timeouts, divergence, cancellation."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import agentrt
from agentrt import Retry, agent, current, shield, step
from agentrt.store.postgres import PostgresStore
from tests.conftest import Start, supervising
from tests.support import Sql, eventually

ledger = str(Path(__file__).parents[1] / "cases" / "ledger.py")
quick = Retry(max_attempts=3, base_s=0.01, factor=1)
once = Retry(max_attempts=1)


@dataclass
class Point:
    x: float
    at: datetime


class Page(BaseModel):
    title: str
    lines: list[tuple[int, str]]


# ---------------------------------------------------------------- values


async def point() -> Point:
    return Point(1.5, datetime(2026, 1, 2, tzinfo=UTC))


def page() -> Page:
    return Page(title="of a thread", lines=[(1, "one")])


async def pair() -> tuple[int, str]:
    return 1, "one"


def whole() -> float:
    return 3


async def nothing() -> None:
    return None


def empty() -> dict[str, Any]:
    return {}


@pytest.mark.parametrize("make", [point, page, pair, whole, nothing, empty])
async def test_the_first_run_gets_what_a_replay_gets(
    database: str, client: agentrt.Client, make: Callable[[], Any]
) -> None:
    values: list[Any] = []

    @agent(retry=quick)
    async def twice() -> str:
        values.append(await step(make))
        if current().attempt == 1:
            raise RuntimeError("again")
        return "done"

    async with supervising(database, twice):
        await twice.ask()
    first, replayed = values
    assert first == replayed
    assert type(first) is type(replayed)


async def test_a_value_is_the_stored_one_and_no_object_that_the_function_keeps(
    database: str, client: agentrt.Client
) -> None:
    kept: dict[str, Any] = {"a": 1}

    async def give() -> dict[str, Any]:
        return kept

    @agent
    async def takes() -> bool:
        value = await step(give)
        return value == kept and value is not kept

    async with supervising(database, takes):
        assert await takes.ask()


async def test_a_value_that_is_too_large_is_refused_with_its_size_and_path(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    async def large(size: int) -> str:
        return "x" * size

    @agent(retry=once)
    async def asks(size: int) -> int:
        return len(await step(large, size))

    async with supervising(database, asks, step_bytes_max=2_000):
        assert await asks.ask(1_998) == 1_998
        with pytest.raises(agentrt.JobFailed, match=r"step large#0.* 2,001 bytes as JSON; at most 2,000") as failed:
            await asks.ask(1_999)
    assert failed.value.reason == "fatal"
    async with supervising(database, asks):
        assert await asks.ask(1024 * 1024 - 2) == 1024 * 1024 - 2
        with pytest.raises(agentrt.JobFailed, match="1,048,577 bytes as JSON; at most 1,048,576"):
            await asks.ask(1024 * 1024 - 1)


async def test_outside_of_a_job_a_step_is_a_plain_call() -> None:
    assert await step(pair) == (1, "one")
    assert await step(page) == page()
    async with shield():
        await agentrt.sleep(0)


async def test_nested_steps_count_below_their_own_and_are_not_run_when_the_outer_is_known(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    runs: Counter[str] = Counter()

    async def inner(name: str) -> str:
        runs[name] += 1
        return name

    async def outer(crash: bool) -> list[str]:
        runs["outer"] += 1
        said = [await step(inner, "a"), await step(inner, "b")]
        if crash and current().attempt == 1:
            raise RuntimeError("in the outer")
        return said

    @agent(retry=quick)
    async def nests() -> list[list[str]]:
        said = [await step(outer, True), await step(outer, False), [await step(inner, "c")]]
        if current().attempt == 2:
            raise RuntimeError("after all")
        return said

    async with supervising(database, nests):
        assert await nests.ask() == [["a", "b"], ["a", "b"], ["c"]]
    assert runs == {"outer": 3, "a": 2, "b": 2, "c": 1}
    ids = [row["step"] for row in await sql.rows("select step from agentrt.steps order by step")]
    nested = [f"{outer}/inner#{number}" for outer in ("outer#0", "outer#1") for number in (0, 1)]
    assert ids == sorted(["inner#0", "outer#0", "outer#1", *nested])


# ---------------------------------------------------------------- tries and their waits


async def test_a_step_is_tried_as_often_as_its_retry_says_and_its_tries_are_no_attempts(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    runs: Counter[int] = Counter()

    async def fails(times: int) -> str:
        runs[times] += 1
        if runs[times] <= times:
            raise ConnectionError(f"try {runs[times]}")
        return "done"

    @agent(retry=once)
    async def tries(times: int) -> str:
        return await step(fails, times, retry=quick)

    async with supervising(database, tries):
        assert await tries.ask(2) == "done"
        with pytest.raises(agentrt.JobFailed, match="ConnectionError: try 3"):
            await tries.ask(3)
    assert runs == {2: 3, 3: 3}
    assert await sql.value("select max(attempt) from agentrt.history") == 1


async def test_a_restart_neither_shortens_repeats_nor_forgets_the_wait_for_the_next_try(
    start: Start, client: agentrt.Client, sql: Sql
) -> None:
    source = """
from agentrt import Retry, agent, current, step
from ledger import note

async def work() -> str:
    note("try")
    if sum(1 for line in open(__import__("os").environ["LEDGER"]) if '"try"' in line) < 3:
        raise ConnectionError("not yet")
    return "done"

@agent
async def patient() -> str:
    return await step(work, retry=Retry(max_attempts=3, base_s=2.5, factor=1, jitter=0))
"""
    options = ("run", ledger, "agents.py", "--lease", "1", "--poll", "600")
    first = start(*options, source=source, name="first")
    job = await agentrt.to("patient").send()

    async def waits(tries: int) -> datetime:
        async def look() -> datetime | None:
            due: datetime | None = await sql.value("select due from agentrt.steps where not done and tries = $1", tries)
            return due

        due = await eventually(look, what=f"the wait after try {tries}")
        assert due is not None
        return due

    due_first = await waits(1)
    first.kill()
    second = start(*options, name="second")
    due_second = await waits(2)
    second.kill()
    third = start(*options, name="third")

    assert await job.result(timeout_s=30) == "done"
    moments = [note["at"] for note in third.notes("try")]
    assert len(moments) == 3
    for moment, due in zip(moments[1:], (due_first, due_second), strict=True):
        assert -0.05 < moment - due.timestamp() < 15, "at the stored moment, by whoever is up"
    assert [note["pid"] for note in third.notes("try")] == [first.pid, second.pid, third.pid]


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_step_that_takes_too_long_is_stopped(database: str, client: agentrt.Client, blocking: bool) -> None:
    stopped: list[str] = []
    go_on = threading.Event()

    async def hangs() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.append("cancelled")
            raise

    def blocks() -> None:
        go_on.wait(30)

    @agent(retry=quick)
    async def bounded() -> list[str]:
        try:
            await step(blocks if blocking else hangs, timeout_s=0.1)
        except TimeoutError as error:
            said = [type(error).__name__, str(error)]
        if current().attempt == 1:
            raise RuntimeError("again")
        return said

    async with supervising(database, bounded):
        name = "blocks" if blocking else "hangs"
        assert await bounded.ask() == ["StepTimeout", f"step {name}#0 ran longer than 0.1 s"]
        go_on.set()
    assert stopped == ([] if blocking else ["cancelled"])


async def test_a_timeout_inside_the_function_is_its_own_error(database: str, client: agentrt.Client) -> None:
    async def own() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    @agent(retry=once)
    async def bounded() -> str:
        try:
            await step(own, timeout_s=20)
        except TimeoutError as error:
            return type(error).__name__
        return "no error"

    async with supervising(database, bounded):
        assert await bounded.ask() == "TimeoutError"


# ---------------------------------------------------------------- never an outcome


async def _running(sql: Sql, job: agentrt.Job[Any], started: asyncio.Event) -> None:
    async with asyncio.timeout(20):
        await started.wait()
    assert await sql.state(job.id) == "running"


@pytest.mark.parametrize("way", ["cancel", "shutdown", "lost"])
@pytest.mark.parametrize("turned", [False, True])
async def test_a_step_that_is_stopped_records_nothing_whatever_it_makes_of_that(
    database: str, client: agentrt.Client, sql: Sql, way: str, turned: bool
) -> None:
    started = asyncio.Event()

    async def work() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if turned:
                raise RuntimeError("something else") from None
            raise
        return "never"

    @agent(retry=once)
    async def stopped() -> str:
        try:
            return await step(work)
        finally:
            await step(pair)  # nothing durable begins after the stop

    async with supervising(database, stopped, drain_s=0, lease_s=1.0) as supervisor:
        job = await stopped.send()
        await _running(sql, job, started)
        if way == "cancel":
            await job.cancel("enough")
            with pytest.raises(agentrt.JobCancelled, match="enough"):
                await job.result(timeout_s=20)
        elif way == "lost":
            await sql.run("update agentrt.jobs set fence = fence + 1, supervisor = null")

            async def let_go() -> bool:
                return supervisor.running_jobs == 0

            await eventually(let_go, what="the attempt has ended")
    if way == "shutdown":
        assert await sql.state(job.id) == "ready"
        assert await sql.value("select attempt from agentrt.jobs") == 0
    assert await sql.rows("select * from agentrt.steps") == []


async def test_a_shield_holds_a_cancellation_off_until_its_block_is_done(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    started, told = asyncio.Event(), asyncio.Event()
    done: list[str] = []

    @agent
    async def cleans() -> None:
        async with shield():
            started.set()
            await told.wait()
            done.append((await step(pair))[1])
        done.append("not reached")  # the cancellation arrives at the next wait
        await asyncio.sleep(30)
        done.append("never")

    async with supervising(database, cleans) as supervisor:
        job = await cleans.send()
        await _running(sql, job, started)
        await job.cancel("enough")
        (attempt,) = supervisor._runner.attempts.values()

        async def heard() -> bool:
            return attempt.stop_reason == "cancelled"

        await eventually(heard)
        assert await sql.state(job.id) == "running"
        told.set()
        with pytest.raises(agentrt.JobCancelled, match="enough"):
            await job.result(timeout_s=20)
    assert done == ["one", "not reached"]
    assert await sql.value("select count(*) from agentrt.steps") == 1


# ---------------------------------------------------------------- divergence


async def test_other_arguments_than_recorded_end_the_job_as_diverged_until_the_step_is_forgotten(
    database: str, client: agentrt.Client, sql: Sql, store: PostgresStore
) -> None:
    argument, fails = ["old"], [True]
    runs: Counter[str] = Counter()

    async def work(name: str, of: str) -> str:
        runs[f"{name} {of}"] += 1
        return of

    @agent(retry=quick)
    async def changing() -> list[str]:
        said = [await step(work, "before", "same"), await step(work, "it", argument[0], name="it")]
        said.append(await step(work, "after", said[-1], name="after"))
        if fails[0]:
            argument[0], fails[0] = "new", False
            raise RuntimeError("the code is changed now")
        return said

    async with supervising(database, changing):
        job = await changing.send()
        with pytest.raises(agentrt.JobFailed) as failed:
            await job.result(timeout_s=20)
        assert failed.value.reason == "diverged"
        text = failed.value.error
        assert text.count("test_step.py:") == 2, text
        assert "step it#0 recorded as a step at" in text
        assert "now a step at" in text
        assert "'new'" in text
        assert "agentrt retry 1 --from 'it#0'" in text
        assert await sql.value("select attempt from agentrt.history") == 1, "it costs no attempt"

        assert await store.retry(job.id, "it#0") == "ready"
        assert await job.result(timeout_s=20) == ["same", "new", "new"]
    assert runs == {"before same": 1, "it old": 1, "it new": 1, "after old": 1, "after new": 1}


async def test_another_verb_than_recorded_is_found(database: str, client: agentrt.Client, sql: Sql) -> None:
    turn = [0]

    @agent(retry=quick)
    async def turning() -> None:
        turn[0] += 1
        if turn[0] == 1:
            await step(pair, name="sleep")
            raise RuntimeError("again")
        await agentrt.sleep(0.01)

    async with supervising(database, turning):
        with pytest.raises(
            agentrt.JobFailed, match=r"recorded as a step at test_step\.py:.*now a sleep at test_step\.py:"
        ):
            await turning.ask()


async def test_a_divergence_that_the_agent_swallows_ends_the_job_all_the_same(
    database: str, client: agentrt.Client
) -> None:
    turn = [0]

    @agent(retry=quick)
    async def eats() -> str:
        turn[0] += 1
        try:
            await step(asyncio.sleep, 0, turn[0], name="it")
        except BaseException:
            return "swallowed"
        raise RuntimeError("again")

    async with supervising(database, eats):
        with pytest.raises(agentrt.JobFailed) as failed:
            await eats.ask()
    assert failed.value.reason == "diverged"


async def test_a_step_in_a_thread_whose_process_is_told_to_stop_runs_again(
    start: Start, client: agentrt.Client
) -> None:
    source = """
import os, time
from agentrt import agent, step
from ledger import note

def slow() -> int:
    note("slow")
    first = len(open(os.environ["LEDGER"]).readlines()) == 1
    time.sleep(60 if first else 0)
    return 1

@agent
async def threaded() -> int:
    return await step(slow)
"""
    options = ("run", ledger, "agents.py", "--drain", "0")
    first = start(*options, source=source, name="first")
    job = await agentrt.to("threaded").send()
    await first.noted("slow")
    before = time.monotonic()
    first.signal(signal.SIGTERM)
    assert await first.ended() == 0
    assert time.monotonic() - before < 20, "it does not wait for the thread"
    second = start(*options, name="second")
    assert await job.result(timeout_s=20) == 1
    assert [note["attempt"] for note in second.notes("slow")] == [1, 1]
