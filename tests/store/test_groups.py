"""Groups: single sends, and steps, of concurrent tasks share statements, and each caller gets its own answer."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from agentrt.errors import LeaseLost, StoreRefused, StoreUnavailable
from agentrt.model import Sender, State, StepMark
from agentrt.store.postgres import PostgresStore
from tests.cases.proxy import Proxy
from tests.store.verbs import (
    claim,
    claim_one,
    give_back,
    in_line,
    message,
    outputs,
    record,
    row_of,
    running_one,
    send,
    send_one,
    states_of,
)
from tests.support import Sql, eventually, locked, waiting, waiting_from

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


async def both_under_way(store: PostgresStore, sql: Sql, key: str = "k") -> list[asyncio.Task[int]]:
    """Two sends that wait for the lock of a mailbox: what is sent now to one that is locked, too, waits for one of them."""
    tasks = [asyncio.create_task(send_one(store, key=key)) for _ in range(2)]
    await sql.until_count(waiting, 2)
    return tasks


async def queued(store: PostgresStore, key: str = "late") -> list[asyncio.Task[int]]:
    """Sends to a mailbox that is locked, while both that may be under way are: they have found it so, and wait for their turn."""
    before = store.statements
    tasks = [asyncio.create_task(send_one(store, payload=b"%d" % n, key=key)) for n in range(5)]

    async def looked() -> bool:
        return len(store._waiting_sends._waiting) == len(tasks)

    await eventually(looked)
    assert store.statements - before < len(tasks)
    return tasks


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


async def test_a_caller_cancelled_before_its_message_goes_has_sent_nothing(
    database: str, store: PostgresStore, sql: Sql
) -> None:
    async with locked(database, "k"), locked(database, "late"):
        tasks = await both_under_way(store, sql)
        later = await queued(store)
        later[2].cancel()
        await turns()
    await asyncio.gather(*tasks)
    ids = await asyncio.gather(*later, return_exceptions=True)
    assert isinstance(ids.pop(2), asyncio.CancelledError)
    stored = "select array_agg(payload::text order by payload::text) from agentrt.jobs where key = 'late'"
    assert await sql.value(stored) == list("0134")
    states = await states_of(store, [int(str(job_id)) for job_id in ids])
    assert sorted(states) == [State.blocked] * 3 + [State.ready]


async def test_a_caller_cancelled_while_its_message_goes_takes_no_other_along(
    database: str, store: PostgresStore, sql: Sql
) -> None:
    async with locked(database, "late"):
        async with locked(database, "k"):
            tasks = await both_under_way(store, sql)
            later = await queued(store)
        await asyncio.gather(*tasks)
        await sql.until_count(waiting, 1)  # the five share a statement now
        later[2].cancel()
        await turns()
    ids = await asyncio.gather(*later, return_exceptions=True)
    assert isinstance(ids.pop(2), asyncio.CancelledError)
    rows = await sql.rows("select id, payload::text from agentrt.jobs where key is distinct from 'k' order by id")
    assert sorted(row["payload"] for row in rows if row["id"] in ids) == list("0134")
    assert len(rows) <= 5  # whether the cancelled one is there is unknown to its caller; nothing is there twice
    assert len({row["payload"] for row in rows}) == len(rows)


async def test_those_who_wait_go_when_the_callers_under_way_are_cancelled(
    database: str, store: PostgresStore, sql: Sql
) -> None:
    async with locked(database, "k"):
        async with locked(database, "late"):
            tasks = await both_under_way(store, sql)
            later = await queued(store)
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        async with asyncio.timeout(20):
            await asyncio.gather(*later)
    assert await sql.value(payloads) == list("01234")


@pytest.mark.parametrize("key", [None, "another"], ids=["without a mailbox", "to another mailbox"])
async def test_a_mailbox_that_is_locked_holds_up_no_message_that_is_not_for_it(
    database: str, store: PostgresStore, sql: Sql, key: str | None
) -> None:
    async with locked(database, "k"):
        held = await both_under_way(store, sql)
        held += [asyncio.create_task(send_one(store, key="k")) for _ in range(20)]
        await turns()
        async with asyncio.timeout(soon_s):
            ids = await asyncio.gather(*(send_one(store, key=key and f"{key} {n}") for n in range(20)))
        assert await states_of(store, ids) == [State.ready] * 20
        assert not any(task.done() for task in held)
    assert len(set(await asyncio.gather(*held))) == 22


async def test_messages_of_attempts_that_wait_for_a_locked_mailbox_leave_connections_for_all_else(
    database: str, store: PostgresStore
) -> None:
    job = await running_one(store)
    sender = Sender(job.id, job.fence)
    async with locked(database, "k"):
        said = [message(key="k", step=StepMark(f"send:a#{n}")) for n in range(20)]
        held = [asyncio.create_task(store.send([each], sender=sender)) for each in said]
        await turns()
        async with asyncio.timeout(soon_s):
            await send(store, message(), message())
            assert len(await claim(store)) == 2
        assert not any(task.done() for task in held)
    ids = [sent.id for (sent,) in await asyncio.gather(*held)]
    assert len(set(ids)) == 20


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


async def test_all_who_share_a_statement_hear_of_its_lost_connection_and_nothing_is_stored(
    database: str, store: PostgresStore, sql: Sql
) -> None:
    async with locked(database, "late"):
        async with locked(database, "k"):
            first = await both_under_way(store, sql)
            later = await queued(store)
        await asyncio.gather(*first)
        await sql.until_count(waiting, 1)
        await sql.run(f"select pg_terminate_backend(pid) from {waiting_from}")
        found = await asyncio.gather(*later, return_exceptions=True)
    assert [type(each) for each in found] == [StoreUnavailable] * 5
    assert len({id(each) for each in found}) == 5  # each may be raised, and get its own traceback
    assert await sql.value("select array_agg(key) from agentrt.jobs") == ["k", "k"]
    assert isinstance(await send_one(store), int)


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
