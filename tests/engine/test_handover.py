"""Messages that a process hands over to itself in the statement that stores them: each runs once, and nothing waits for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import pytest

import agentrt
from agentrt import Retry, agent
from agentrt.context import Attempt
from agentrt.engine.committer import Committer
from agentrt.engine.stats import Stats
from agentrt.engine.supervisor import Supervisor
from agentrt.errors import StoreBusy, StoreError, StoreRefused, StoreUnavailable
from agentrt.model import Claimed, Finish, NewJob, Sender, Sent, State
from agentrt.store import Heard
from agentrt.store.postgres import PostgresStore
from agentrt.store.postgres.listener import PostgresNotifier
from agentrt.testing import supervising
from agentrt.testing.inside import supervising_on
from tests.cases.proxy import Proxy
from tests.engine.stores import NoLooksBehind
from tests.support import Sql, eventually, locked, waiting

soon_s = 5.0  # far below the polls and leases of these tests
heard_all = "a bell of nobody's, rung after all others"


class FirstAnswer(NoLooksBehind):
    """A store in which something befalls the answer to the first message that an attempt sends, when it is stored."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.stored = asyncio.Event()
        self.let_through = asyncio.Event()
        self.lost = False
        self.heard_all = asyncio.Event()

    async def send(self, jobs: Sequence[NewJob], connection: Any = None, sender: Sender | None = None) -> list[Sent]:
        answer = await super().send(jobs, connection, sender)
        if sender is not None and not self.stored.is_set():
            self.stored.set()
            await self.let_through.wait()
            if self.lost:
                raise StoreUnavailable("the link is gone")
        return answer

    async def listen(self, heard: Heard) -> PostgresNotifier:
        def hear(channel: str, payload: str) -> None:
            heard(channel, payload)
            if payload == heard_all:
                self.heard_all.set()

        return await super().listen(hear)


async def insert(sql: Sql, name: str, key: str | None = None, payload: str = "{}", due: str = "now()") -> int:
    job_id: int = await sql.value(
        f"insert into agentrt.jobs(agent, key, payload, run_after) values ($1, $2, $3::json, {due}) returning id",
        name,
        key,
        payload,
    )
    return job_id


async def rung(supervisor: Supervisor) -> None:
    """Wait until it hears of all that comes."""

    async def looks() -> bool:
        return bool(supervisor.health()["ok"])

    await eventually(looks, what="a supervisor that listens and has beaten")


async def test_a_message_that_is_claimed_while_the_answer_to_its_send_is_lost_runs_once(
    database: str, sql: Sql
) -> None:
    runs: list[int] = []
    ends = {1: asyncio.Event(), 2: asyncio.Event()}

    @agent
    async def child(n: int) -> None:
        runs.append(n)
        await ends[n].wait()

    @agent
    async def parent() -> None:
        await child["k"].send(2)

    async def runs_next() -> bool:
        return 2 in runs

    store = FirstAnswer(database)
    store.lost = True
    try:
        async with supervising_on(store, parent, child, poll_s=600, drain_s=soon_s) as supervisor:
            await rung(supervisor)
            await insert(sql, "child", "k", '{"n": 1}')
            await eventually(lambda: sql.value("select status = 'running' from agentrt.jobs"))
            parent_id = await insert(sql, "parent")
            await store.stored.wait()  # behind the first of its mailbox, so it is not handed over
            ends[1].set()
            await eventually(runs_next)  # claimed as any other
            store.let_through.set()
            await sql.until(parent_id, "succeeded")  # the send was repeated
            ends[2].set()
            await sql.until_none_unfinished()
        assert supervisor.stats.outcomes == {"succeeded": 3}  # it has ended, and heard all answers
    finally:
        await store.close()
    assert runs == [1, 2]


async def test_a_message_that_is_handed_over_with_an_answer_that_is_lost_runs_once_and_at_once(
    database: str, sql: Sql
) -> None:
    attempts: list[int] = []

    @agent(retry=Retry(max_attempts=1))
    async def once() -> None:
        attempts.append(agentrt.current().attempt)

    @agent
    async def parent() -> None:
        await once.send()

    store = FirstAnswer(database)
    store.lost = True
    store.let_through.set()
    try:
        async with supervising_on(store, parent, once, lease_s=600, poll_s=600, drain_s=soon_s) as supervisor:
            await rung(supervisor)
            await insert(sql, "parent")
            await sql.until_none_unfinished(within_s=soon_s)
        assert supervisor.stats.outcomes == {"succeeded": 2}  # it has ended, and heard all answers
    finally:
        await store.close()
    assert attempts == [1]


async def test_a_message_whose_sender_is_cancelled_before_the_answer_is_here_runs_at_once(
    database: str, sql: Sql
) -> None:
    limits: list[asyncio.Timeout] = []
    begin, cancelled, over = asyncio.Event(), asyncio.Event(), asyncio.Event()
    attempts: list[int] = []

    @agent(retry=Retry(max_attempts=1))
    async def once(word: str) -> None:
        attempts.append(agentrt.current().attempt)

    @agent
    async def parent() -> None:
        await begin.wait()
        try:
            async with asyncio.timeout(None) as limit:
                limits.append(limit)
                await once.send("otter")
        except TimeoutError:
            cancelled.set()
        await over.wait()

    async def ran() -> bool:
        return bool(attempts)

    async with (
        Proxy(database).running() as proxy,
        supervising(proxy.dsn, once, parent, lease_s=600, poll_s=600, drain_s=soon_s),
    ):
        await insert(sql, "parent")
        proxy.late_answer_to = b"otter"
        begin.set()
        await sql.until_count("select count(*) from agentrt.jobs where agent = 'once'", 1)  # it is committed
        limits[0].reschedule(asyncio.get_running_loop().time())
        for _ in range(10):  # turns of the loop: the cancellation gets as far as it can
            await asyncio.sleep(0)
        for link in proxy.links:
            link.from_server.release()
        async with asyncio.timeout(soon_s):
            await cancelled.wait()
        await eventually(ran, within_s=soon_s)
        over.set()
        await sql.until_none_unfinished()
    assert attempts == [1]
    assert await sql.value("select count(*) from agentrt.attempts") == 0


@pytest.mark.parametrize("why", ["it is due later", "it is behind another of its mailbox"])
async def test_a_job_that_comes_while_its_slot_is_kept_for_a_message_that_is_not_handed_over_runs_at_once(
    why: str, database: str, sql: Sql
) -> None:
    ran, end = asyncio.Event(), asyncio.Event()

    @agent
    async def child() -> None: ...

    @agent
    async def other() -> None:
        ran.set()

    @agent
    async def parent() -> None:
        await (child["k"] if why == "it is behind another of its mailbox" else child.options(delay_s=3600)).send()
        await end.wait()

    store = FirstAnswer(database)
    try:
        async with supervising_on(store, parent, child, other, slots=2, poll_s=600, drain_s=soon_s) as supervisor:
            await rung(supervisor)
            await insert(sql, "child", "k", due="now() + interval '1 h'")
            parent_id = await insert(sql, "parent")
            await store.stored.wait()
            await insert(sql, "other")
            await sql.run("select pg_notify('agentrt.bell', $1)", heard_all)
            await store.heard_all.wait()
            for _ in range(10):  # turns of the loop: the ring is answered as far as it can be
                await asyncio.sleep(0)
            store.let_through.set()
            async with asyncio.timeout(soon_s):
                await ran.wait()
            assert await sql.state(parent_id) == "running"
            end.set()
            await sql.until(parent_id, "succeeded")
            assert supervisor.stats.claimed["poll"] == 0
    finally:
        await store.close()


async def test_a_message_whose_send_waited_for_its_mailbox_for_longer_than_a_lease_runs_on_its_first_attempt(
    database: str, sql: Sql
) -> None:
    @agent(lease_s=0.5)
    async def child() -> None: ...

    @agent
    async def parent() -> None:
        await child.options(key="k").send()

    store = FirstAnswer(database)
    store.let_through.set()
    try:
        async with supervising_on(store, parent, child, poll_s=600) as supervisor:
            await rung(supervisor)
            async with locked(database, "k", "child"):
                job_id = await insert(sql, "parent")
                await sql.until_count(waiting, 1)
                began = await sql.value("select clock_timestamp()")
                await eventually(
                    lambda: sql.value("select clock_timestamp() > $1::timestamptz + interval '0.6 s'", began)
                )
            await sql.until(job_id, "succeeded", within_s=soon_s)
            await sql.until_none_unfinished()
            assert supervisor.stats.claimed["sent"] == 1
    finally:
        await store.close()
    assert await sql.value("select count(*) from agentrt.history where attempt = 1") == 2
    assert await sql.value("select count(*) from agentrt.attempts") == 0


class FirstRelay(PostgresStore):
    """A store in which the first statement that stores ends together with a message fails, before or after it is stored."""

    def __init__(self, dsn: str, failure: StoreError, *, stored: bool) -> None:
        super().__init__(dsn)
        self.failure: StoreError | None = failure
        self.rode: Counter[int] = Counter()
        self._stored = stored

    async def relay(self, outcomes: Sequence[Finish], job: NewJob, sender: Sender) -> tuple[set[int], Sent | None]:
        self.rode.update(outcome.id for outcome in outcomes)
        failure, self.failure = self.failure, None
        if failure is None:
            return await super().relay(outcomes, job, sender)
        if self._stored:
            await super().relay(outcomes, job, sender)
        raise failure


@agent
async def ping(left: int) -> None:
    if left:
        await pong.send(left - 1)


@agent
async def pong(left: int) -> None:
    if left:
        await ping.send(left - 1)


async def test_two_agents_that_send_to_each_other_cost_one_statement_a_hop(database: str, sql: Sql) -> None:
    hops = 60
    store = NoLooksBehind(database)
    try:
        async with supervising_on(store, ping, pong, poll_s=600) as supervisor:
            await rung(supervisor)
            before = store.statements
            await insert(sql, "ping", payload=f'{{"left": {hops}}}')
            await sql.until_count("select count(*) from agentrt.history", hops + 1)
            assert store.statements - before < hops * 1.5  # some are of claims and beats
            assert supervisor.stats.claimed["sent"] >= hops - 1
    finally:
        await store.close()
    assert await sql.value("select count(*) from agentrt.history where state = 'succeeded' and attempt = 1") == hops + 1


@pytest.mark.parametrize(
    ("failure", "stored"),
    [
        (StoreUnavailable("the link is gone"), True),
        (StoreUnavailable("the link is gone"), False),
        (StoreRefused("one of them"), False),
        (StoreBusy("one of them"), False),
    ],
    ids=["its answer is lost", "the link is gone before", "it is refused", "it would have to wait"],
)
async def test_a_statement_that_fails_with_ends_and_a_message_costs_none_of_them(
    failure: StoreError, stored: bool, database: str, sql: Sql
) -> None:
    hops = 10
    store = FirstRelay(database, failure, stored=stored)
    try:
        async with supervising_on(store, ping, pong, lease_s=600, poll_s=600, drain_s=soon_s) as supervisor:
            await rung(supervisor)
            await insert(sql, "ping", payload=f'{{"left": {hops}}}')
            await sql.until_count("select count(*) from agentrt.history", hops + 1)
            assert store.failure is None
            await sql.until_none_unfinished()
        assert supervisor.stats.outcomes == {"succeeded": hops + 1}  # it has ended, and heard all answers
        assert max(store.rode.values()) == 1  # what failed to ride is stored alone
    finally:
        await store.close()
    assert await sql.value("select count(*) from agentrt.history where state = 'succeeded' and attempt = 1") == hops + 1
    assert await sql.value("select count(*) from agentrt.attempts") == 0


async def test_a_message_runs_and_its_sender_goes_on_when_settling_an_end_that_rode_with_it_fails(
    database: str, sql: Sql
) -> None:
    hops = 10
    store = PostgresStore(database)
    try:
        async with supervising_on(store, ping, pong, lease_s=600, poll_s=600, drain_s=soon_s) as supervisor:
            await rung(supervisor)
            settle, faults = supervisor._committer.on_stored, [RuntimeError("no more log")]

            def fail_once(attempts: Sequence[Attempt]) -> None:
                if faults and any(attempt.job.hops == 2 for attempt in attempts):
                    raise faults.pop()
                settle(attempts)

            supervisor._committer.on_stored = fail_once
            await insert(sql, "ping", payload=f'{{"left": {hops}}}')
            await sql.until_count("select count(*) from agentrt.history", hops + 1)
            assert not faults
            await eventually(lambda: _restarted(supervisor))
    finally:
        await store.close()
    assert await sql.value("select count(*) from agentrt.history where state = 'succeeded' and attempt = 1") == hops + 1


async def _restarted(supervisor: Supervisor) -> bool:
    return supervisor.stats.restarts["committer"] == 1


async def test_an_end_whose_ride_has_failed_is_not_taken_along_again() -> None:
    """Else one that the database refuses would take every message with it into its refusal."""
    job = Claimed(1, 1, "ping", None, 1, 3, "{}", 5, 1, 1, 0, None, None, False, 15.0, 0.0)
    committer = Committer(cast("Any", None), Stats())
    committer.put(Attempt(job, cast("Any", None), cast("Any", None)), Finish(1, 1, State.succeeded, "null"), 0.0)

    async def refuse(ends: Sequence[Finish]) -> tuple[set[int], None]:
        raise StoreRefused(f"{len(ends)} ends")

    (rider,) = committer.take_along(older_than=2)
    with pytest.raises(StoreRefused, match="1 ends"):
        await committer.carry([rider], refuse)
    assert not committer.take_along(older_than=2)
