"""Asks: a step of the asker with one outcome, whoever dies, is parked, is late or is many."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

import agentrt
from agentrt import Retry, agent, current
from tests.conftest import Start, supervising
from tests.support import Sql, eventually

quick = Retry(max_attempts=3, base_s=0.01, factor=1)
once = Retry(max_attempts=1)


@agent(retry=once)
async def echo(value: Any) -> Any:
    return value


@agent(retry=once)
async def nap(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "rested"


@agent(retry=once)
async def break_down() -> None:
    raise ValueError("broken")


async def _outcome(ask: Any) -> list[str]:
    try:
        return ["value", str(await ask)]
    except agentrt.JobError as error:
        return [type(error).__name__, str(error)]


async def test_failure_cancel_timeout_and_reply_each_have_their_own_outcome_that_a_replay_repeats(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    outcomes: list[list[list[str]]] = []

    @agent(retry=quick)
    async def asker() -> list[list[str]]:
        asked = [
            echo.ask("hello"),
            break_down.ask(),
            nap["cancelled"].ask(30),
            nap["late"].options(timeout_s=0.2).ask(30),
        ]
        outcomes.append(list(await asyncio.gather(*(_outcome(one) for one in asked))))
        if current().attempt == 1:
            raise RuntimeError("again")
        return outcomes[-1]

    async def cancel_it() -> bool:
        job_id = await sql.value("select id from agentrt.jobs where key = 'cancelled'")
        return bool(job_id) and await client.cancel(job_id, "enough")

    async with supervising(database, asker, echo, break_down, nap, drain_s=0):
        job = await asker.send()
        await eventually(cancel_it)
        result = await job.result(timeout_s=20)
    assert outcomes == [result, result]
    assert [kind for kind, _ in result] == ["value", "JobFailed", "JobCancelled", "ReplyTimeout"]
    texts = [text for _, text in result]
    assert texts[0] == "hello"
    assert "failed, error: ValueError: broken" in texts[1]
    assert "was cancelled: Cancelled: enough" in texts[2] or "was cancelled: enough" in texts[2]
    assert "within 0.2 s" in texts[3]
    assert await sql.value("select count(*) from agentrt.steps where kind = 'ask' and done") == 4


async def test_a_failed_ask_that_escapes_ends_the_asker_and_a_retry_by_hand_asks_again(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    broken = [True]

    @agent(retry=once)
    async def unsure() -> str:
        if broken[0]:
            raise ValueError("broken")
        return "mended"

    @agent(retry=quick)
    async def asker() -> str:
        return await unsure.ask()

    async with supervising(database, asker, unsure):
        job = await asker.send()
        with pytest.raises(agentrt.JobFailed, match="broken"):
            await job.result(timeout_s=20)
        assert await sql.value("select count(*) from agentrt.attempts where job_id = $1", job.id) == 1
        broken[0] = False
        assert await client.store.retry(job.id) == "ready"
        assert await job.result(timeout_s=20) == "mended"


async def test_reply_timeout_and_cancel_that_race_leave_one_outcome(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    seen: dict[int, list[list[str]]] = {}

    @agent(retry=quick)
    async def asker(seconds: float) -> None:
        outcome = await _outcome(nap.options(timeout_s=0.3).ask(seconds))
        seen.setdefault(current().job_id, []).append(outcome)
        if current().attempt < 3:
            raise RuntimeError("again")

    async def cancel_some() -> None:
        while True:
            rows = await sql.rows("select id from agentrt.jobs where agent = 'nap' and id % 3 = 0")
            for row in rows:
                await asyncio.sleep(random.uniform(0, 0.02))
                await client.cancel(row["id"], "in the race")
            await asyncio.sleep(0.25)

    async with supervising(database, asker, nap):
        cancelling = asyncio.ensure_future(cancel_some())
        # Some that are clear on any machine; the others end as the timeout does.
        naps = [(0.0, 1.0)[n % 2] if n % 6 < 2 else random.uniform(0.25, 0.31) for n in range(60)]
        jobs = [await asker.send(seconds) for seconds in naps]
        await asyncio.gather(*(job.result(timeout_s=30) for job in jobs))
        cancelling.cancel()
    assert len(seen) == 60
    assert all(outcomes == [outcomes[0]] * 3 for outcomes in seen.values())
    kinds = Counter(outcomes[0][0] for outcomes in seen.values())
    assert set(kinds) <= {"value", "ReplyTimeout", "JobCancelled"}
    assert len(kinds) >= 2, kinds
    assert await sql.value("select count(*) from agentrt.steps where kind = 'ask' and done") == 60


async def test_an_asker_that_is_parked_is_rebuilt_from_its_steps_when_the_answer_comes(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    ran: Counter[str] = Counter()
    go_on = asyncio.Event()

    async def note(what: str) -> str:
        ran[what] += 1
        return what

    @agent(retry=once)
    async def gated() -> str:
        await go_on.wait()
        return "opened"

    @agent(retry=once)
    async def asker() -> list[str]:
        ran["asker"] += 1
        said = [await agentrt.step(note, "before"), await gated.ask()]
        return [*said, await agentrt.step(note, "after")]

    async with supervising(database, asker, gated, warm_s=0.2) as supervisor:
        job = await asker.send()
        await sql.until(job.id, "parked")
        assert await sql.value("select supervisor is null and attempt = 0 from agentrt.jobs where id = $1", job.id)
        assert supervisor.running_jobs == 1
        go_on.set()
        assert await job.result(timeout_s=20) == ["before", "opened", "after"]
    assert ran == {"asker": 2, "before": 1, "after": 1}
    assert await sql.value("select attempt from agentrt.history where id = $1", job.id) == 1


async def test_an_asker_whose_process_is_killed_gets_the_answer_of_the_same_question(
    start: Start, client: agentrt.Client, sql: Sql, tmp_path: Any
) -> None:
    source = """
import asyncio, os
from pathlib import Path
from agentrt import agent

@agent
async def slow() -> int:
    while not Path("gate").exists():
        await asyncio.sleep(0.02)
    return os.getpid()

@agent
async def asker() -> int:
    return await slow.ask()
"""
    options = ("run", "agents.py", "--lease", "1", "--poll", "600")
    first = start(*options, source=source, name="first")
    job = await agentrt.to("asker").send()

    async def asked() -> bool:
        return bool(await sql.value("select count(*) = 2 from agentrt.jobs where status = 'running'"))

    await eventually(asked)
    first.kill()
    second = start(*options, name="second")
    await second.until("job.claimed", count=2)
    (tmp_path / "gate").touch()
    assert await job.result(timeout_s=20) == second.pid
    assert await sql.value("select count(*) from agentrt.history") == 2


async def test_a_thousand_asks_at_once_hold_no_slot_and_no_connection(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    go_on = asyncio.Event()

    @agent(retry=once)
    async def gated(n: int) -> int:
        await go_on.wait()
        return n

    @agent(retry=once)
    async def asker(count: int) -> int:
        return sum(await asyncio.gather(*(gated.ask(n) for n in range(count))))

    async def asked() -> bool:
        return bool(await sql.value("select count(*) = 1000 from agentrt.steps where kind = 'ask'"))

    async with supervising(database, asker, gated, echo, slots=4):
        await echo.ask("warm")
        job = await asker.send(1_000)
        await eventually(asked)
        links = await sql.value("select count(*) from pg_stat_activity where datname = current_database()")
        # The store's eight, a listener, the heart's; the client's up to eight and its listener; this one.
        assert links <= 20, links
        go_on.set()
        assert await job.result(timeout_s=60) == sum(range(1_000))


async def test_many_askers_wait_in_one_slot(database: str, client: agentrt.Client) -> None:
    @agent(retry=once)
    async def leaf(n: int) -> int:
        return n

    @agent(retry=once)
    async def middle(n: int) -> int:
        return await leaf.ask(n)

    @agent(retry=once)
    async def top(n: int) -> int:
        return await middle.ask(n)

    async with supervising(database, top, middle, leaf, slots=1):
        jobs = [await top.send(n) for n in range(30)]
        assert [await job.result(timeout_s=30) for job in jobs] == list(range(30))


async def test_asks_of_one_mailbox_by_one_asker_wait_for_no_lock_of_each_other(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    @agent(retry=once)
    async def keyed(n: int) -> int:
        return n

    @agent(retry=once)
    async def asker(n: int) -> int:
        async def chain(of: int) -> int:
            return sum([await keyed[f"k{of % 2}"].ask(of) for _ in range(10)])

        return sum(await asyncio.gather(*(chain(of) for of in range(10))))

    async with supervising(database, asker, keyed):
        assert await asyncio.gather(*(asker.ask(n) for n in range(4))) == [450] * 4

    deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
    assert await sql.value(deadlocks) == 0, "the server ends one of two after a second, and it is repeated"


async def test_the_result_of_a_job_is_a_step_inside_an_agent(database: str, client: agentrt.Client, sql: Sql) -> None:
    outcomes: list[list[list[str]]] = []

    @agent(retry=quick)
    async def asker(missing: int) -> list[list[str]]:
        jobs = [await echo.send("sent"), await break_down.send()]
        said = [await _outcome(job.result()) for job in jobs]
        said.append(await _outcome((await nap.send(30)).result(timeout_s=0.1)))
        said.append(await _outcome(client.job(missing).result()))
        outcomes.append(said)
        if current().attempt == 1:
            raise RuntimeError("again")
        return said

    async with supervising(database, asker, echo, break_down, nap, drain_s=0):
        result = await asker.ask(10**9)
    assert [kind for kind, _ in result] == ["value", "JobFailed", "ReplyTimeout", "JobNotFound"]
    assert outcomes == [result, result]
    assert await sql.value("select count(*) from agentrt.history where agent in ('echo', 'break_down')") == 2


@pytest.mark.parametrize("stands", ["ended", "running"])
async def test_an_ask_with_the_dedup_key_of_another_job_gets_its_result(
    database: str, client: agentrt.Client, sql: Sql, stands: str
) -> None:
    go_on = asyncio.Event()

    @agent(retry=once)
    async def work(value: str) -> str:
        await go_on.wait()
        return value

    @agent(retry=once)
    async def asker() -> str:
        return await work.options(dedup="one").ask("second")

    async with supervising(database, asker, work):
        first = await work.options(dedup="one").send("first")
        if stands == "ended":
            go_on.set()
            await first.result(timeout_s=20)
        job = await asker.send()
        if stands == "running":

            async def asked() -> bool:
                return bool(await sql.value("select count(*) = 1 from agentrt.steps where child = $1", first.id))

            await eventually(asked)
            go_on.set()
        assert await job.result(timeout_s=20) == "first"
    assert await sql.value("select count(*) from agentrt.history where agent = 'work'") == 1
