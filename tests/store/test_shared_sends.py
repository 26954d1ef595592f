"""Shared sends: messages that attempts send at the same time share statements, and are what each would have stored alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import asyncpg

from agentrt.errors import AskCycle, BudgetExceeded, LeaseLost, StoreRefused
from agentrt.model import Budget, Claimed, Finish, NewJob, Sender, Sent, State, StepMark
from agentrt.store.postgres import PostgresStore
from tests.store.verbs import claim, end, give_back, in_line, message, row_of, send, send_one
from tests.support import Sql, held, locked, waiting

soon_s = 20.0


def said(n: int, **more: object) -> NewJob:
    return message("b", payload=b"%d" % n, step=StepMark(f"send:b#{n}", f"print{n}", f"agents.py:{n}"), **more)  # type: ignore[arg-type]


async def attempts(store: PostgresStore, count: int = 50, **more: object) -> list[Claimed]:
    await send(store, *(message(**more) for _ in range(count)))  # type: ignore[arg-type]
    return await claim(store, most=count)


async def send_each(
    store: PostgresStore, jobs: Sequence[Claimed], *, most: int = 10, **more: object
) -> list[Sent | BaseException]:
    """A message of each attempt, numbered by its place, in at most so many statements."""
    before = store.statements
    owners = [Sender(job.id, job.fence) for job in jobs]
    sends = [store.send([said(n, **more)], sender=owner) for n, owner in enumerate(owners)]
    answers = await asyncio.gather(*sends, return_exceptions=True)
    assert store.statements - before <= most
    return [answer if isinstance(answer, BaseException) else answer[0] for answer in answers]


def ids_of(answers: Sequence[Sent | BaseException]) -> list[int]:
    return [one.id for one in answers if isinstance(one, Sent)]


async def test_messages_of_concurrent_attempts_share_statements_and_each_is_a_step_of_its_own(
    store: PostgresStore, sql: Sql
) -> None:
    jobs = await attempts(store)
    sent = await send_each(store, jobs, priority=3, max_attempts=7)
    for n, (job, one) in enumerate(zip(jobs, sent, strict=True)):
        assert isinstance(one, Sent)
        assert not one.existed
        row = await row_of(store, one.id)
        assert (row["job_type"], row["payload"], row["priority"], row["max_attempts"]) == ("b", str(n), 3, 7)
        assert (row["parent"], row["root"], row["hops"], row["state"]) == (job.id, job.id, 1, "ready")
        (step,) = await sql.rows("select * from agentrt.steps where job_id = $1", job.id)
        assert (step["step"], step["kind"], step["done"], step["fence"]) == (f"send:b#{n}", "send", True, job.fence)
        assert (step["child"], step["output"]) == (one.id, str(one.id))
        assert (step["fingerprint"], step["place"]) == (f"print{n}", f"agents.py:{n}")
    children = await claim(store, "b")
    for child, one in zip(children, await send_each(store, children), strict=True):
        assert isinstance(one, Sent)
        row = await row_of(store, one.id)
        assert (row["parent"], row["root"], row["hops"]) == (child.id, child.root, 2)
        assert child.root in [job.id for job in jobs]


async def test_what_was_sent_by_an_earlier_call_is_not_sent_again(store: PostgresStore, sql: Sql) -> None:
    jobs = await attempts(store)
    first = ids_of(await send_each(store, jobs[:40]))
    sent = await send_each(store, jobs)
    assert ids_of(sent)[:40] == first
    assert [isinstance(one, Sent) and one.existed for one in sent] == [True] * 40 + [False] * 10
    assert await sql.value("select count(*) from agentrt.jobs where agent = 'b'") == 50


async def test_only_the_attempts_that_have_lost_their_jobs_send_nothing(store: PostgresStore, sql: Sql) -> None:
    jobs = await attempts(store)
    await give_back(store, jobs[7], jobs[40])
    for n, (job, one) in enumerate(zip(jobs, await send_each(store, jobs), strict=True)):
        if n in (7, 40):
            assert isinstance(one, LeaseLost)
            assert f"job {job.id}," in str(one)
        else:
            assert isinstance(one, Sent)
    assert await sql.value("select count(*) from agentrt.jobs where agent = 'b'") == 48
    assert await sql.value("select count(*) from agentrt.steps") == 48


async def test_a_message_that_the_database_refuses_fails_alone(store: PostgresStore, sql: Sql) -> None:
    jobs = await attempts(store)
    owners = [Sender(job.id, job.fence) for job in jobs]
    messages = [said(n) for n in range(50)]
    messages[30].payload = b"{"
    sends = (store.send([job], sender=owner) for job, owner in zip(messages, owners, strict=True))
    sent = await asyncio.gather(*sends, return_exceptions=True)
    assert isinstance(sent.pop(30), StoreRefused)
    assert all(isinstance(one, list) for one in sent)
    assert await sql.value("select count(*) from agentrt.jobs where agent = 'b'") == 49
    assert await sql.value("select count(*) from agentrt.steps where job_id = $1", jobs[30].id) == 0


async def test_branches_of_one_attempt_share_statements_too(store: PostgresStore, sql: Sql) -> None:
    (job,) = await attempts(store, 1)
    sent = await send_each(store, [job] * 30)
    assert len({one.id for one in sent if isinstance(one, Sent)}) == 30
    assert await sql.value("select count(*) from agentrt.steps where job_id = $1", job.id) == 30


async def test_a_message_is_due_no_later_than_the_deadline_of_its_sender(store: PostgresStore, sql: Sql) -> None:
    jobs = await attempts(store, 20, deadline_s=60.0)
    sent = await send_each(store, jobs, delay_s=3_600.0, deadline_s=7_200.0)
    for job, one in zip(jobs, sent, strict=True):
        assert isinstance(one, Sent)
        same = "select c.run_after = p.deadline and c.deadline = p.deadline from agentrt.jobs c, agentrt.jobs p"
        assert await sql.value(f"{same} where c.id = $1 and p.id = $2", one.id, job.id)
        assert (await row_of(store, one.id))["state"] == "scheduled"


async def test_asks_share_statements_and_each_waits_for_its_own_answer(store: PostgresStore, sql: Sql) -> None:
    jobs = await attempts(store)
    sent = ids_of(await send_each(store, jobs, asks=True, timeout_s=600.0))
    for n, (job, child) in enumerate(zip(jobs, sent, strict=True)):
        (step,) = await sql.rows("select *, due > now() as later from agentrt.steps where job_id = $1", job.id)
        assert (step["kind"], step["done"], step["output"], step["later"]) == ("ask", False, None, True)
        assert step["child"] == child
        assert await sql.value("select asked from agentrt.jobs where id = $1", child)
        assert step["step"] == f"send:b#{n}"
    children = await claim(store, "b")
    await end(store, *(Finish(child.id, child.fence, State.succeeded, f"{child.id}") for child in children))
    assert await sql.value("select count(*) from agentrt.steps where done and output::text = child::text") == 50


async def test_messages_to_mailboxes_share_statements_and_each_mailbox_has_one_that_may_run(
    store: PostgresStore, sql: Sql
) -> None:
    jobs = await attempts(store)
    owners = [Sender(job.id, job.fence) for job in jobs]
    before = store.statements
    keys = [None, None, *(f"k{n % 4}" for n in range(48))]  # two go alone
    sent = await asyncio.gather(*(store.send([said(n, key=keys[n])], sender=one) for n, one in enumerate(owners)))
    assert store.statements - before == 3
    ids = [one.id for (one,) in sent]
    for mailbox in range(4):
        states = [(await row_of(store, job_id))["state"] for job_id in ids[2 + mailbox :: 4]]
        assert states == ["ready"] + ["blocked"] * 11
    assert sorted(await in_line(store, "b")) == sorted(ids)


async def test_a_mailbox_that_is_held_holds_up_none_that_share_its_statement(
    database: str, store: PostgresStore, sql: Sql
) -> None:
    jobs = await attempts(store)
    owners = [Sender(job.id, job.fence) for job in jobs]
    before = store.statements
    async with locked(database, "k0", "b"):
        keys = [None, None, *(f"k{n % 4}" for n in range(48))]  # two go alone
        sends = (store.send([said(n, key=keys[n])], sender=one) for n, one in enumerate(owners))
        tasks = [asyncio.ensure_future(one) for one in sends]
        async with asyncio.timeout(soon_s):
            await asyncio.gather(*(task for n, task in enumerate(tasks) if keys[n] != "k0"))
        await sql.until_count(waiting, 1)
        assert store.statements - before == 4
        assert not any(task.done() for n, task in enumerate(tasks) if keys[n] == "k0")
    await asyncio.gather(*tasks)
    assert await sql.value("select count(*) from agentrt.jobs where agent = 'b'") == 50


async def test_an_ask_that_would_wait_for_itself_is_refused_and_no_other(store: PostgresStore, sql: Sql) -> None:
    keys = [f"k{n}" for n in range(20)]
    await send(store, *(message(key=key) for key in keys))
    jobs = await claim(store)
    sends = [
        store.send([message(key=keys[n], step=StepMark("ask"), asks=True)], sender=Sender(job.id, job.fence))
        if n in (3, 11)  # to the mailbox that it holds
        else store.send([said(n, key=keys[n], asks=True)], sender=Sender(job.id, job.fence))
        for n, job in enumerate(jobs)
    ]
    answers = await asyncio.gather(*sends, return_exceptions=True)
    assert [n for n, one in enumerate(answers) if isinstance(one, AskCycle)] == [3, 11]
    assert await sql.value("select count(*) from agentrt.steps where kind = 'ask'") == 18


async def paid(store: PostgresStore, count: int, *, jobs: int) -> tuple[int, list[Sender]]:
    """The attempts of jobs that one budget pays for, and its account."""
    (top,) = await attempts(store, 1)
    account, _ = await store.open_budget(Sender(top.id, top.fence), Budget(jobs=jobs))
    assert account is not None
    owner = Sender(top.id, top.fence, account)
    await store.send([message("a", step=StepMark(f"send:a#{n}")) for n in range(count)], sender=owner)
    return account, [Sender(job.id, job.fence, job.account) for job in await claim(store)]


async def test_messages_that_budgets_pay_for_share_statements_and_are_counted(store: PostgresStore, sql: Sql) -> None:
    first, some = await paid(store, 20, jobs=1_000)
    second, more = await paid(store, 20, jobs=1_000)
    free = [Sender(job.id, job.fence) for job in await attempts(store, 10)]
    before = store.statements
    owners = [one for three in zip(some, more, free * 2, strict=True) for one in three]
    await asyncio.gather(*(store.send([said(n)], sender=one) for n, one in enumerate(owners)))
    assert store.statements - before <= 10
    assert await sql.value("select array_agg(jobs order by id) from agentrt.budgets") == [41, 41]
    payers = await sql.rows("select account, count(*) from agentrt.jobs where agent = 'b' group by account")
    assert {row["account"]: row["count"] for row in payers} == {None: 20, first: 20, second: 20}


async def test_a_budget_that_is_used_up_refuses_what_goes_beyond_it_and_nothing_else(
    store: PostgresStore, sql: Sql
) -> None:
    account, owners = await paid(store, 20, jobs=28)
    free = [Sender(job.id, job.fence) for job in await attempts(store, 20)]
    sends = (store.send([said(n)], sender=one) for n, one in enumerate(owners + free))
    answers = await asyncio.gather(*sends, return_exceptions=True)
    refused = [n for n, one in enumerate(answers) if isinstance(one, BudgetExceeded)]
    assert len(refused) == 13
    assert all(n < 20 for n in refused)
    assert await sql.value("select jobs from agentrt.budgets where id = $1", account) == 28
    assert await sql.value("select count(*) from agentrt.jobs where agent = 'b'") == 27


async def test_a_budget_that_somebodys_transaction_holds_holds_up_only_what_it_pays_for(
    database: str, store: PostgresStore, sql: Sql
) -> None:
    account, owners = await paid(store, 20, jobs=1_000)
    free = [Sender(job.id, job.fence) for job in await attempts(store, 20)]
    holder = await asyncpg.connect(database)
    try:
        async with holder.transaction():
            await holder.execute("select 1 from agentrt.budgets where id = $1 for update", account)
            waits = [asyncio.ensure_future(store.send([said(n)], sender=one)) for n, one in enumerate(owners)]
            await sql.until_count(waiting, 1)
            async with asyncio.timeout(soon_s):
                for n in range(2):
                    await asyncio.gather(*(store.send([said(100 + n)], sender=one) for one in free))
                await asyncio.gather(*(send_one(store) for _ in range(20)))
            assert not any(task.done() for task in waits)
    finally:
        await holder.close()
    await asyncio.gather(*waits)
    assert await sql.value("select jobs from agentrt.budgets where id = $1", account) == 41


async def test_messages_under_a_budget_share_statements_beside_one_that_goes_alone(store: PostgresStore) -> None:
    """Or they would queue behind it, those that come meanwhile behind them, and so on for good."""
    account, owners = await paid(store, 20, jobs=1_000)
    async with store._turn_of({("budget", str(account), "")}), asyncio.timeout(soon_s):
        await asyncio.gather(*(store.send([said(n)], sender=one) for n, one in enumerate(owners)))


async def test_an_attempt_whose_row_is_held_holds_up_no_other(database: str, store: PostgresStore, sql: Sql) -> None:
    jobs = await attempts(store)
    async with held(database, jobs[7].id):
        owners = [Sender(job.id, job.fence) for job in jobs]
        waits = [asyncio.ensure_future(store.send([said(n)], sender=owners[7])) for n in range(20)]
        await sql.until_count(waiting, 1)
        async with asyncio.timeout(soon_s):
            sends = (store.send([said(n)], sender=one) for n, one in enumerate(owners) if n != 7)
            await asyncio.gather(*sends)
            await asyncio.gather(*(send_one(store) for _ in range(20)))
        assert not any(task.done() for task in waits)
    await asyncio.gather(*waits)


async def test_a_budget_is_charged_also_when_the_sender_does_not_say_that_there_is_one(
    store: PostgresStore, sql: Sql
) -> None:
    jobs = await attempts(store, 12)
    account, _ = await store.open_budget(Sender(jobs[5].id, jobs[5].fence), Budget(jobs=2))
    assert all(isinstance(one, Sent) for one in await send_each(store, jobs, most=20))
    assert await sql.value("select jobs from agentrt.budgets where id = $1", account) == 2


async def test_a_single_message_of_an_attempt_goes_at_once_and_alone(store: PostgresStore) -> None:
    (job,) = await attempts(store, 1)
    for n in range(3):
        before = store.statements
        await store.send([said(n)], sender=Sender(job.id, job.fence))
        assert store.statements - before == 1


async def test_messages_that_share_a_statement_keep_the_order_of_their_calls(store: PostgresStore) -> None:
    _, _, *shared = ids_of(await send_each(store, await attempts(store)))  # two go alone
    assert [job.id for job in await claim(store, "b") if job.id in shared] == shared


async def test_a_message_from_outside_waits_for_no_attempt(database: str, store: PostgresStore, sql: Sql) -> None:
    (job,) = await attempts(store, 1)
    async with asyncio.timeout(20):
        async with held(database, job.id):
            sends = (store.send([said(n)], sender=Sender(job.id, job.fence)) for n in range(20))
            tasks = [asyncio.ensure_future(one) for one in sends]
            await sql.until_count(waiting, 2)
            await asyncio.gather(*(send_one(store) for _ in range(20)))
            assert not any(task.done() for task in tasks)
        await asyncio.gather(*tasks)
    assert await sql.value("select count(*) from agentrt.jobs") == 41
