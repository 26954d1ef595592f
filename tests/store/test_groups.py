"""Groups: single sends, and steps, of concurrent tasks share statements, and each caller gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from agentrt.errors import LeaseLost, StoreRefused, StoreUnavailable
from agentrt.model import Claimed, NewJob, Sender, StepMark
from agentrt.store.postgres import PostgresStore
from tests.cases.proxy import Proxy
from tests.store.verbs import (
    claim,
    claim_one,
    give_back,
    in_line,
    listening,
    message,
    outputs,
    record,
    row_of,
    running_one,
    send,
    send_one,
)
from tests.support import Sql, held, locked, waiting, waiting_from

payloads = "select array_agg(payload::text order by payload::text) from agentrt.jobs"
soon_s = 5.0


def numbered(n: int, **more: object) -> dict[str, object]:
    return {"payload": b"%d" % n, **more}


async def send_all(store: PostgresStore, *messages: dict[str, object]) -> list[int | BaseException]:
    """Each by a task of its own, in this order."""
    return await asyncio.gather(*(send_one(store, **each) for each in messages), return_exceptions=True)  # type: ignore[arg-type]


async def turns(count: int = 5) -> None:
    """Let the tasks that are new begin."""
    for _ in range(count):
        await asyncio.sleep(0)


async def seven(store: PostgresStore) -> tuple[list[Claimed], list[Claimed]]:
    """Two running jobs, whose steps go alone, and five whose steps then share a statement."""
    await send(store, *(message() for _ in range(7)))
    jobs = await claim(store)
    return jobs[:2], jobs[2:]


async def both_under_way(store: PostgresStore, sql: Sql, jobs: list[Claimed]) -> list[asyncio.Task[str | None]]:
    """Steps of two jobs that are held: as many statements as may be under way. What is recorded now waits for one of them."""
    tasks = [asyncio.create_task(record(store, job, "s#0", "0")) for job in jobs]
    await sql.until_count(waiting, 2)
    return tasks


async def queued(store: PostgresStore, jobs: list[Claimed]) -> list[asyncio.Task[str | None]]:
    before = store.statements
    tasks = [asyncio.create_task(record(store, job, "s#0", str(n))) for n, job in enumerate(jobs)]
    await turns()
    assert store.statements == before
    return tasks


@asynccontextmanager
async def sharing(
    database: str, store: PostgresStore, sql: Sql
) -> AsyncIterator[tuple[list[Claimed], list[asyncio.Task[str | None]]]]:
    """Five jobs and their steps, which share a statement that waits for the last of them while the block runs."""
    first, later = await seven(store)
    async with held(database, later[4].id):
        async with held(database, first[0].id), held(database, first[1].id):
            under_way = await both_under_way(store, sql, first)
            tasks = await queued(store, later)
        await asyncio.gather(*under_way)
        await sql.until_count(waiting, 1)
        yield later, tasks


async def recorded(sql: Sql, jobs: list[Claimed]) -> list[int]:
    """Whose steps of these are stored, by their places."""
    found = {row["job_id"] for row in await sql.rows("select job_id from agentrt.steps")}
    return [n for n, job in enumerate(jobs) if job.id in found]


async def test_sends_of_concurrent_tasks_share_statements_and_each_gets_its_own_id(
    store: PostgresStore, sql: Sql
) -> None:
    await send_all(store, *(numbered(n) for n in range(3)))
    before = store.statements
    ids = await send_all(store, *(numbered(n) for n in range(10, 460)))
    assert store.statements - before < 20
    for job_id, n in zip(ids, range(10, 460), strict=True):
        assert isinstance(job_id, int)
        assert await sql.value("select payload::text from agentrt.jobs where id = $1", job_id) == str(n)
    assert await sql.value("select count(*) from agentrt.jobs") == 453


async def test_messages_of_one_mailbox_that_share_a_statement_keep_the_order_of_their_calls(
    store: PostgresStore,
) -> None:
    before = store.statements
    first = [numbered(n, agent="c", key=f"w{n}") for n in range(2)]  # they go alone, the others wait for them
    ids = await send_all(store, *first, *(numbered(n, agent="b", key="zyx"[n % 3]) for n in range(60)))
    assert store.statements - before == 3
    order = await in_line(store, "b")
    for place in range(3):
        sent = ids[2 + place :: 3]
        assert [job_id for job_id in order if job_id in sent] == sent


async def test_a_single_send_of_an_idle_store_goes_at_once_and_alone(store: PostgresStore) -> None:
    for _ in range(5):
        before = store.statements
        await send_one(store)
        assert store.statements - before == 1


@pytest.mark.parametrize("bad", [b"{", b'"\x00"'])
@pytest.mark.parametrize("place", [0, 1, 30])
async def test_a_message_that_the_database_refuses_fails_alone(
    store: PostgresStore, sql: Sql, bad: bytes, place: int
) -> None:
    messages = [numbered(n) for n in range(100, 150)]
    messages.insert(place, {"payload": bad})
    ids = await send_all(store, *messages)
    assert isinstance(ids.pop(place), StoreRefused)
    assert [(await row_of(store, int(str(job_id))))["payload"] for job_id in ids] == [str(n) for n in range(100, 150)]
    assert await sql.value(payloads) == [str(n) for n in range(100, 150)]


async def test_a_caller_cancelled_before_its_item_goes_has_stored_nothing(
    database: str, store: PostgresStore, sql: Sql
) -> None:
    first, later = await seven(store)
    async with held(database, first[0].id), held(database, first[1].id):
        under_way = await both_under_way(store, sql, first)
        tasks = await queued(store, later)
        tasks[2].cancel()
        await turns()
    await asyncio.gather(*under_way)
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(found.pop(2), asyncio.CancelledError)
    assert found == ["0", "1", "3", "4"]
    assert await recorded(sql, later) == [0, 1, 3, 4]


async def test_a_caller_cancelled_while_its_item_goes_takes_no_other_along(
    database: str, store: PostgresStore, sql: Sql
) -> None:
    async with sharing(database, store, sql) as (later, tasks):
        tasks[2].cancel()
        await turns()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(found.pop(2), asyncio.CancelledError)
    assert found == ["0", "1", "3", "4"]
    assert {0, 1, 3, 4} <= set(await recorded(sql, later))  # of the cancelled one it is unknown


async def test_those_who_wait_go_when_the_callers_under_way_are_cancelled(
    database: str, store: PostgresStore, sql: Sql
) -> None:
    first, later = await seven(store)
    async with held(database, first[0].id), held(database, first[1].id):
        under_way = await both_under_way(store, sql, first)
        tasks = await queued(store, later)
        for task in under_way:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        async with asyncio.timeout(20):
            await asyncio.gather(*tasks)
    assert await recorded(sql, later) == [0, 1, 2, 3, 4]


async def test_all_who_share_a_statement_hear_of_its_lost_connection_and_nothing_is_stored(
    database: str, store: PostgresStore, sql: Sql
) -> None:
    async with sharing(database, store, sql) as (later, tasks):
        await sql.run(f"select pg_terminate_backend(pid) from {waiting_from}")
        found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in found] == [StoreUnavailable] * 5
    assert len({id(each) for each in found}) == 5  # each may be raised, and get its own traceback
    assert await recorded(sql, later) == []
    assert await record(store, later[0], "s#0", "0") == "0"


# ------------------------------------------------------------------ a mailbox that somebody's transaction holds


def said(n: int, *, key: str | None = None, asks: bool = False) -> NewJob:
    return message("a", key, step=StepMark(f"send:a#{n}"), asks=asks)


Sends = Callable[[PostgresStore, Sender, int, str], Awaitable[object]]
to_a_mailbox: dict[str, Sends] = {  # number, mailbox
    "from outside": lambda store, sender, n, key: store.send([message(key=key)]),
    "many from outside": lambda store, sender, n, key: store.send([message(key=key), message(key=key)]),
    "of an attempt": lambda store, sender, n, key: store.send([said(n, key=key)], sender=sender),
    "to several": lambda store, sender, n, key: store.send(
        [said(n, key=key), said(n + 1000, key=f"{key}'")], sender=sender
    ),
    "with a dedup key": lambda store, sender, n, key: store.send([message(key=key, dedup=f"{key} {n}")]),
    "an ask": lambda store, sender, n, key: store.send([said(n, key=key, asks=True)], sender=sender),
}


async def end_of(awaitable: Awaitable[object]) -> None:
    await awaitable


@pytest.mark.parametrize("held_up", list(to_a_mailbox))
async def test_a_mailbox_that_is_held_holds_up_nothing_that_is_not_for_it(
    database: str, store: PostgresStore, held_up: str
) -> None:
    job = await running_one(store)
    sender = Sender(job.id, job.fence)
    async with locked(database, "k"):
        sends_held = to_a_mailbox[held_up]
        tasks = [asyncio.create_task(end_of(sends_held(store, sender, n, "k"))) for n in range(12)]
        await turns()
        async with asyncio.timeout(soon_s):
            for number, sends in enumerate(to_a_mailbox.values()):
                await asyncio.gather(*(sends(store, sender, 100 + 10 * number + n, f"{number} {n}") for n in range(6)))
            await asyncio.gather(*(send_one(store) for _ in range(20)))
            assert len(await claim(store)) >= 20
        assert not any(task.done() for task in tasks)
    await asyncio.gather(*tasks)


async def test_an_ask_that_waits_for_a_held_mailbox_holds_up_no_other_ask(
    database: str, store: PostgresStore, sql: Sql
) -> None:
    await send(store, message(key="one"), message(key="two"))
    one, two = await claim(store)
    async with locked(database, "k"):
        waits = asyncio.create_task(store.send([said(0, key="k", asks=True)], sender=Sender(one.id, one.fence)))
        await sql.until_count(waiting, 1)
        async with asyncio.timeout(soon_s):
            await store.send([said(0, asks=True)], sender=Sender(two.id, two.fence))
        assert not waits.done()
    await waits


async def test_messages_to_a_held_mailbox_keep_their_order_and_ring_only_once_they_are_there(
    database: str, store: PostgresStore, sql: Sql
) -> None:
    async with listening(store) as ears:
        async with locked(database, "k"):
            tasks: list[asyncio.Task[int]] = []
            for n in range(5):
                tasks.append(asyncio.create_task(send_one(store, key="k", payload=b"%d" % n)))
                await turns(20)
                if n == 0:
                    await sql.until_count(waiting, 1)
            assert await ears.now(store) == []
        ids = await asyncio.gather(*tasks)
        assert "ready" in await ears.now(store)
    assert await in_line(store) == ids


async def test_steps_of_concurrent_attempts_share_statements_and_only_the_attempt_that_lost_its_job_hears_so(
    store: PostgresStore,
) -> None:
    await send(store, *(message() for _ in range(60)))
    jobs = await claim(store)
    await give_back(store, jobs[7], jobs[40])
    before = store.statements
    found = await asyncio.gather(*(record(store, job, "s#0", str(job.id)) for job in jobs), return_exceptions=True)
    assert store.statements - before < 10
    for n, (job, output) in enumerate(zip(jobs, found, strict=True)):
        if n in (7, 40):
            assert isinstance(output, LeaseLost)
            assert f"job {job.id}," in str(output)
        else:
            assert output == str(job.id)
    assert await give_back(store, *jobs) == {job.id for n, job in enumerate(jobs) if n not in (7, 40)}
    again = {job.id: outputs(job) for job in await claim(store)}
    assert again == {job.id: {} if n in (7, 40) else {"s#0": str(job.id)} for n, job in enumerate(jobs)}


async def test_of_two_attempts_of_a_job_that_share_a_statement_the_one_that_lost_it_records_nothing(
    store: PostgresStore, sql: Sql
) -> None:
    late = await running_one(store)
    assert await give_back(store, late) == {late.id}
    current = await claim_one(store)
    await send(store, *(message("b") for _ in range(4)))
    first = [
        record(store, job, "s#0", "0") for job in await claim(store, "b")
    ]  # two go alone, the others wait for them
    pair = [record(store, late, "late#0", '"late"'), record(store, current, "current#0", '"current"')]
    before = store.statements
    found = (await asyncio.gather(*first, *pair, return_exceptions=True))[-2:]
    assert store.statements - before < len(first) + len(pair)
    assert isinstance(found[0], LeaseLost)
    assert found[1] == '"current"'
    assert await sql.rows("select step, fence from agentrt.steps where job_id = $1", late.id) == [
        {"step": "current#0", "fence": current.fence}
    ]


async def test_a_statement_whose_answer_is_lost_is_not_repeated(database: str, sql: Sql) -> None:
    async with Proxy(database).running() as proxy:
        store = PostgresStore(proxy.dsn)
        try:
            await send_all(store, *(numbered(n) for n in range(100, 110)))
            for link in proxy.links:
                link.from_server.drop()
            tasks = [asyncio.create_task(send_one(store, payload=b"%d" % n)) for n in range(200, 210)]
            await sql.until_count("select count(*) from agentrt.jobs", 12)  # the two that go alone
            for link in proxy.links:
                link.cut()
            found = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await store.close()
    assert [type(each) for each in found] == [StoreUnavailable] * 2 + [int] * 8
    assert await sql.value(payloads) == [str(n) for n in (*range(100, 110), *range(200, 210))]


async def test_one_step_of_several_tasks_is_stored_once(store: PostgresStore, sql: Sql) -> None:
    await send_one(store)
    (job,) = await claim(store)
    outputs = set(await asyncio.gather(*(record(store, job, "s#0", str(n)) for n in range(8))))
    assert outputs == {await sql.value("select output::text from agentrt.steps")}
