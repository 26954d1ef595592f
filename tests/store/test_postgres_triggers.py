"""What holds for whoever writes to the tables with SQL of their own, and what the locks of PostgreSQL do to the verbs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from agentrt.errors import StoreError
from agentrt.model import Claimed, State
from agentrt.store.postgres import PostgresStore
from tests.store.verbs import (
    claim,
    claim_one,
    fail,
    give_back,
    here,
    in_line,
    listening,
    message,
    others,
    send,
    send_one,
    states_of,
    succeed,
)
from tests.support import Sql, eventually

insert = "insert into agentrt.jobs(agent, key) values ($1, $2) returning id"


@pytest.fixture
async def other(database: str) -> AsyncIterator[asyncpg.Connection]:
    """A second session of somebody's own."""
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()


async def somebody_waits_for_a_lock(sql: Sql) -> None:
    waiting = (
        "select count(*) > 0 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    )

    async def look() -> bool:
        return bool(await sql.value(waiting))

    await eventually(look, what="a session that waits for a lock")


async def test_a_plain_insert_is_a_message(store: PostgresStore, sql: Sql) -> None:
    async with listening(store) as ears:
        job_id = await sql.value(
            """insert into agentrt.jobs(agent, payload) values ('a', '{"x": 1e17}') returning id"""
        )
        await ears.until("ready")
    job = await claim_one(store)
    assert (job.id, job.payload, job.priority, job.attempt) == (job_id, '{"x": 1e17}', 5, 1)


@pytest.mark.parametrize("created_at", ["now()", "now() + interval '1 h'"], ids=["when it is", "with its due moment"])
async def test_a_plain_insert_that_is_due_later_is_scheduled_whatever_it_says_of_its_making(
    store: PostgresStore, sql: Sql, created_at: str
) -> None:
    job_id = await sql.value(
        f"insert into agentrt.jobs(agent, run_after, created_at) values ('a', now() + interval '1 h', {created_at}) returning id"
    )
    assert await states_of(store, [job_id]) == [State.scheduled]
    assert await claim(store) == []


async def test_plain_inserts_with_a_key_make_a_mailbox(store: PostgresStore, sql: Sql) -> None:
    ids = [await sql.value(insert, "a", "k") for _ in range(2)]
    rows = await sql.rows(
        "insert into agentrt.jobs(agent, key) select 'a', 'k' from generate_series(1, 3) returning id"
    )
    ids += [row["id"] for row in rows]
    ids.append(await send_one(store, key="k"))
    assert await states_of(store, ids) == [State.ready, *[State.blocked] * 5]
    assert await in_line(store) == ids


async def test_nobody_can_insert_past_the_head_of_a_mailbox(store: PostgresStore, sql: Sql) -> None:
    head = await sql.value(insert, "a", "k")
    sly = await sql.value(
        "insert into agentrt.jobs(agent, key, status, kseq) values ('a', 'k', 'ready', 0) returning id"
    )
    assert await states_of(store, [head, sly]) == [State.ready, State.blocked]
    assert await in_line(store) == [head, sly]


async def test_a_delayed_plain_insert_waits_for_its_moment(store: PostgresStore, sql: Sql) -> None:
    text = "insert into agentrt.jobs(agent, key, run_after) values ('a', $1, now() + interval '1 hour') returning id"
    async with listening(store) as ears:
        ids = [await sql.value(text, key) for key in (None, "k")]
        await ears.until("due")
    assert await states_of(store, ids) == [State.scheduled] * 2


async def test_the_order_of_a_mailbox_is_the_order_of_the_commits(
    store: PostgresStore, sql: Sql, other: asyncpg.Connection
) -> None:
    early = sql.connection.transaction()
    await early.start()
    first = await sql.value(insert, "a", "k")
    late = other.transaction()
    await late.start()
    waiting = asyncio.ensure_future(other.fetchval(insert, "a", "k"))
    await somebody_waits_for_a_lock(sql)
    await early.commit()
    second = await waiting
    third = asyncio.ensure_future(send_one(store, key="k"))
    await late.commit()
    order = [first, second, await third]
    assert await states_of(store, order) == [State.ready, State.blocked, State.blocked]
    assert await in_line(store) == order


async def test_a_message_that_was_rolled_back_holds_up_nobody(
    store: PostgresStore, sql: Sql, other: asyncpg.Connection
) -> None:
    transaction = sql.connection.transaction()
    await transaction.start()
    await sql.value(insert, "a", "k")
    waiting = asyncio.ensure_future(other.fetchval(insert, "a", "k"))
    await somebody_waits_for_a_lock(sql)
    await transaction.rollback()
    assert await states_of(store, [await waiting]) == [State.ready]


async def test_a_message_is_not_claimed_before_it_is_committed(store: PostgresStore, other: asyncpg.Connection) -> None:
    transaction = other.transaction()
    await transaction.start()
    ids = [sent.id for sent in await store.send([message(), message(key="k"), message(dedup="d")], other)]
    assert await claim(store) == []
    await transaction.commit()
    assert sorted(job.id for job in await claim(store)) == ids


async def test_a_message_of_the_callers_transaction_is_rolled_back_with_it(
    store: PostgresStore, other: asyncpg.Connection
) -> None:
    transaction = other.transaction()
    await transaction.start()
    sent = await store.send([message(key="k", dedup="d"), message(key="l")], other)
    await transaction.rollback()
    assert [await store.job(each.id) for each in sent] == [None, None]
    assert not (await store.send([message(key="k", dedup="d")]))[0].existed


async def test_whoever_deletes_the_head_of_a_mailbox_frees_the_next(store: PostgresStore, sql: Sql) -> None:
    ids = await send(store, *(message(key="k") for _ in range(3)))
    async with listening(store) as ears:
        await sql.run("delete from agentrt.jobs where id = $1", ids[0])
        await ears.until("ready")
    assert await states_of(store, ids[1:]) == [State.ready, State.blocked]
    assert await in_line(store) == ids[1:]


async def test_a_delete_may_take_any_part_of_any_mailbox(store: PostgresStore, sql: Sql) -> None:
    ids = await send(store, *(message(key=key) for key in "kkkkllllmmmm"))
    gone = [ids[n] for n in (0, 1, 5, 8, 10, 11)]
    await sql.run("delete from agentrt.jobs where id = any($1)", gone)
    left = [job_id for job_id in ids if job_id not in gone]
    heads = {left[0], left[2], left[5]}  # k3, l1, m2
    assert await states_of(store, left) == [State.ready if job_id in heads else State.blocked for job_id in left]
    order = await in_line(store)
    assert sorted(order) == left
    assert [job_id for job_id in order if job_id in left[2:5]] == left[2:5]


async def test_a_deleted_head_that_was_running_frees_the_next_and_its_owner_is_refused(
    store: PostgresStore, sql: Sql
) -> None:
    head, behind = await send(store, message(key="k"), message(key="k"))
    job = await claim_one(store)
    await sql.run("delete from agentrt.jobs where id = $1", head)
    assert (await claim_one(store)).id == behind
    assert await succeed(store, job) == set()


async def test_a_delete_that_is_rolled_back_frees_nobody(store: PostgresStore, sql: Sql) -> None:
    ids = await send(store, message(key="k"), message(key="k"))
    transaction = sql.connection.transaction()
    await transaction.start()
    await sql.run("delete from agentrt.jobs where id = $1", ids[0])
    await transaction.rollback()
    assert await states_of(store, ids) == [State.ready, State.blocked]


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_message_with_a_key_is_refused_where_the_snapshot_may_be_too_old(
    store: PostgresStore, other: asyncpg.Connection, isolation: str
) -> None:
    async with other.transaction(isolation=isolation):  # type: ignore[arg-type] # one of the names it takes
        with pytest.raises(
            StoreError, match=r"key needs the isolation level read committed.*transaction of its own\.$"
        ):
            async with other.transaction():
                await store.send([message(key="k")], other)
        await store.send([message()], other)
    assert len(await claim(store)) == 1


async def test_a_claim_skips_what_somebody_holds_and_does_not_wait_for_it(store: PostgresStore, sql: Sql) -> None:
    held, free, also_free = await send(store, message(), message(), message())
    transaction = sql.connection.transaction()
    await transaction.start()
    await sql.run("select 1 from agentrt.jobs where id = $1 for update", held)
    async with asyncio.timeout(10):
        assert [job.id for job in await claim(store, most=2)] == [free, also_free]
        assert await claim(store) == []
    await transaction.rollback()
    assert (await claim_one(store)).id == held


async def test_a_sweep_and_a_due_pass_skip_what_somebody_holds(store: PostgresStore, sql: Sql) -> None:
    ids = await send(store, message(), message(), message(delay_s=3600), message(delay_s=3600))
    await claim(store)
    await sql.run("update agentrt.jobs set lease_expires = now() - interval '1 s' where status = 'running'")
    await sql.run("update agentrt.jobs set run_after = now() - interval '1 s' where status = 'scheduled'")
    transaction = sql.connection.transaction()
    await transaction.start()
    await sql.run("select 1 from agentrt.jobs where id = any($1) for update", [ids[0], ids[2]])
    async with asyncio.timeout(10):
        assert (await store.sweep(10)).made_ready == [ids[1]]
        assert (await store.due(10))[0] == 1
    await transaction.rollback()
    assert (await store.sweep(10)).made_ready == [ids[0]]
    assert (await store.due(10))[0] == 1


async def test_a_cancel_waits_for_a_claim_that_is_on_its_way(
    store: PostgresStore, sql: Sql, other: asyncpg.Connection
) -> None:
    job_id = await send_one(store)
    async with other.transaction():
        await other.execute("update agentrt.jobs set status = 'running', fence = 1 where id = $1", job_id)
        cancelling = asyncio.ensure_future(store.cancel(job_id, "no longer needed"))
        await somebody_waits_for_a_lock(sql)
    assert await cancelling == "requested"
    assert await states_of(store, [job_id]) == [State.running]


async def end_by(verb: str, store: PostgresStore, job: Claimed) -> None:
    match verb:
        case "finish":
            await succeed(store, job)
        case "reschedule":
            await give_back(store, job)
        case "sweep":
            await store.sweep(10, here)
        case "cancel":
            await store.cancel(job.id, "no longer needed")


@pytest.mark.parametrize("verb", ["finish", "reschedule", "sweep", "cancel"])
async def test_whoever_ends_a_keyed_job_locks_its_mailbox_before_its_row(
    store: PostgresStore, sql: Sql, other: asyncpg.Connection, verb: str
) -> None:
    """All in one order: two that meet wait for each other in turn, and never both at once."""
    await send(store, message(key="k"), message(key="k"))
    job = await claim_one(store)
    if verb == "cancel":  # a running one would only be marked
        await give_back(store, job)
    async with other.transaction():
        await other.execute("select agentrt.lock_key('a', 'k')")
        ending = asyncio.ensure_future(end_by(verb, store, job))
        await somebody_waits_for_a_lock(sql)
        await other.execute("select 1 from agentrt.jobs where id = $1 for update nowait", job.id)
    await ending
    assert len(await claim(store)) == 1


async def test_a_lease_renewed_while_the_sweep_waits_for_its_mailbox_is_left_alone(
    store: PostgresStore, sql: Sql, other: asyncpg.Connection
) -> None:
    await send_one(store, key="k")
    job = await claim_one(store)
    await sql.run("update agentrt.jobs set lease_expires = now() - interval '1 s' where status = 'running'")
    async with others(store, 1) as (elsewhere,):
        async with other.transaction():
            await other.execute("select agentrt.lock_key('a', 'k')")
            sweeping = asyncio.ensure_future(elsewhere.sweep(10))
            await somebody_waits_for_a_lock(sql)
            assert await store.renew([(job.id, job.fence, 30.0)]) == {job.id}
        assert (await sweeping).made_ready == []
    assert await states_of(store, [job.id]) == [State.running]


async def test_the_row_of_a_renewed_lease_goes_with_the_attempt(store: PostgresStore, sql: Sql) -> None:
    await send(store, *(message(max_attempts=1) for _ in range(4)))
    jobs = await claim(store)
    assert len(await store.renew([(job.id, job.fence, 30.0) for job in jobs])) == 4
    await succeed(store, jobs[0])
    await fail(store, jobs[1])
    await give_back(store, jobs[2])
    assert await sql.value("select array_agg(job_id) from agentrt.leases") == [jobs[3].id]
    await store.sweep(10, here)
    assert await sql.value("select count(*) from agentrt.leases") == 0


async def test_batches_over_the_same_mailboxes_and_dedup_keys_in_opposite_order_never_deadlock(
    store: PostgresStore, sql: Sql
) -> None:
    deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
    before = await sql.value(deadlocks)
    keys = [f"k{n}" for n in range(40)]
    async with others(store, 6) as stores:

        async def churn(each: PostgresStore, order: list[str], name: int) -> None:
            for turn in range(8):
                await send(each, *(message(key=key, dedup=f"{key}.{turn}") for key in order))
                await send(each, *(message(key=key) for key in order[turn:]))
                jobs = await claim(each, most=30)
                await succeed(each, *jobs[::-1] if name % 2 else jobs)

        pairs = [(each, n) for n, each in enumerate(stores) if isinstance(each, PostgresStore)]
        await asyncio.gather(*(churn(each, keys[:: 1 - 2 * (n % 2)], n) for each, n in pairs))
    assert await sql.value(deadlocks) == before  # the sessions that would have counted one have ended
