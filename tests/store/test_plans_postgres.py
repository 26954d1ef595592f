"""The plans of the verbs: whatever the statistics say, each reaches the jobs by an index and a condition, and sorts none.

A queue is often analysed in the moment it is empty, and a session keeps the plans it made then for as long as it lives.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import asyncpg
import pytest

from agentrt.model import Budget, Finish, Reschedule, Sender, State, StepMark, SweepReport
from agentrt.store.postgres import PostgresStore, lane
from tests.store.plans import Plan, Plans
from tests.store.verbs import (
    beat,
    claim,
    fail,
    give_back,
    here,
    message,
    oops,
    policy,
    record,
    send,
    succeed,
    turn,
    wanted,
)

rounds = 7  # a statement that is not pinned is planned for its values five times, and then perhaps for any

fill = """
insert into agentrt.jobs(agent, key, kseq, status, priority, run_after, fence, supervisor, lease_expires, payload)
select case when n % 10 = 9 then 'other' else 'a' end, k.key, case when k.key is not null then nextval('agentrt.ord_seq') end,
       case when n % 1000 = 1 then 'running' when n % 10 = 2 then 'scheduled' when n % 1000 = 3 then 'parked'
            when k.key is null or n < 5000 and n % 10 = 5 then 'ready' else 'blocked' end,
       n % 3 + 4, now() + case when n % 10 = 2 then make_interval(secs => n) else interval '0' end, 1, gen_random_uuid(),
       now() + interval '1 hour', '{"text": "sixty characters are what a small message has, more or less"}'
  from generate_series(1, $1::int) n,
       lateral (select case n % 10 when 5 then 'key' || n / 10 % 500 when 6 then 'hot' end as key) k
"""

# Read from end to end only what holds nothing but what the statement is after: the sweep looks at each lease of what
# runs now, and due at the front of those that wait.
read_whole = {("sweep", "jobs_running"), ("sweep", "leases"), ("due", "jobs_due")}
hot = {
    "beat",
    "claim",
    "turn",
    "floors",
    "finish",
    "reschedule",
    "due",
    "sweep",
    "renew",
    "record",
    "send",
    "send_shared",
    "lock_budgets",
    "promote",
    "jobs_gate",
}
others = {"lock_keys_of", "bury", "cancel", "retry", "results", "prune_held", "prune_laden", "prune_jobs"}
small_tables = {"history", "history_default", "supervisors", "migrations", "ord_seq"}  # a sequence is one row


async def walk(store: PostgresStore) -> None:
    """Every verb, with every branch that reads jobs."""
    await send(store, *(message(delay_s=delay_s) for delay_s in (0, 0, 0, 0, 60)))
    await send(store, message("b", "k"), message("b", "k"), message("b", "hot", dedup="d"))
    await send(store, message("b", "k"))
    await beat(store)
    jobs = await store.claim(wanted(here, [(policy("a", limit=1_000_000), 8), (policy("b"), 4)], 12))
    assert len(jobs) > 4
    assert await store.renew([(job.id, job.fence, 60.0) for job in jobs]) == {job.id for job in jobs}
    for output in ("1", "2"):
        assert await record(store, jobs[0], "s#0", output) == "1"
    await store.open_budget(Sender(jobs[0].id, jobs[0].fence), Budget(jobs=100))
    mailboxes = enumerate((None, None, None, "o", "o", "p"))  # sent side by side
    sends = [message("b", key, step=StepMark(f"send:b#{n}"), asks=n % 2 > 0) for n, key in mailboxes]
    await asyncio.gather(*(store.send([said], sender=Sender(jobs[0].id, jobs[0].fence)) for said in sends))
    await store.results([job.id for job in jobs])
    await store.cancel(jobs[0].id, "no longer needed")
    await store.cancel_requests([job.id for job in jobs])
    await give_back(store, jobs[0], failure=oops)
    loose = [Reschedule(job.id, job.fence, 60.0, counts=True, failure=oops, loose=True) for job in jobs[1:3]]
    assert len(await store.reschedule(loose, keyed=True, limited=True)) == 2
    await succeed(store, *(await claim(store, "b")))
    assert await fail(store, jobs[3]) == {jobs[3].id}
    await store.retry(jobs[3].id)
    for job_id in await send(store, message("b", "l"), message(delay_s=60.0)):
        assert await store.cancel(job_id, "no longer needed") == "cancelled"
    await store.due(10)
    report = await store.sweep(10, here)
    assert isinstance(report, SweepReport)
    await succeed(store, *(await claim(store, "b")))
    await turns(store)
    done = await store.prune(-86_400.0, 100, partly=True)  # of a day later: today is due as a whole, too
    while done is not None and done.mark is not None:
        done = await store.prune(-86_400.0, 100, partly=True, mark=done.mark)


async def turns(store: PostgresStore) -> None:
    """Jobs end and others are claimed, above floors and without, of a mailbox and of none, as one and as a batch."""
    await send(store, *(message("b", key) for key in ("m", "m", "n", "n", None, None, None)))
    for count in (1, 4):
        begin = [least or 0 for least in await store.floors(["a", "b"])]
        jobs = await store.claim(
            wanted(here, [(policy("a", limit=1_000_000), 8), (policy("b"), 4)], 12, floors=tuple(begin))
        )
        await turn(store, *jobs[:count], agent="b", most=2, key_state="1")
        asked = wanted(here, [(policy("b"), 2)], 2, floors=tuple(begin[10:]))
        ends = [Finish(job.id, job.fence, State.failed, failure=oops) for job in jobs[count:]]
        await store.turn(ends, asked, keyed={"b"}, limited=True)


def faults(plans: list[Plan]) -> list[str]:
    found = set()
    for plan in plans:
        for scan in plan.scans:
            if scan.table in small_tables or scan.table.startswith("history_2"):
                continue
            if read_whole & {(plan.function, scan.table), (plan.function, scan.index)}:
                continue
            if scan.kind not in ("INDEXSCAN", "INDEXONLYSCAN"):
                found.add(f"{plan.place}: {scan.kind} of {scan.table} {scan.index}")
            elif scan.conditions < (2 if scan.index == "jobs_key" else 1):
                found.add(f"{plan.place}: {scan.index} is read with {scan.conditions} conditions")
        for scans in plan.sorted_scans:
            if any(scan.table == "jobs" and scan.index != "jobs_pkey" for scan in scans):
                found.add(f"{plan.place}: sorts jobs")
    return sorted(found)


class Watched:
    """A store in a schema of its own, and the plans that were made for it."""

    def __init__(self, store: PostgresStore, connection: asyncpg.Connection, plans: Plans) -> None:
        self._store = store
        self._connection = connection
        self._plans = plans

    async def sql(self, text: str, *values: object) -> None:
        await self._connection.execute(text.replace("agentrt.", f'"{self._store.schema}".'), *values)

    async def fill(self, rows: int) -> None:
        await self.sql(
            "set session_replication_role = replica"
        )  # without triggers, and without news to those who planned
        await self.sql(fill, rows)
        await self.sql("reset session_replication_role")

    async def analyse(self) -> None:
        for table in ("jobs", "leases", "steps", "dedups", "attempts"):
            await self.sql(f"vacuum analyze agentrt.{table}")

    async def plans_of_a_new_session(self) -> list[Plan]:
        store = PostgresStore(self._store.dsn, self._store.schema)
        try:
            for _ in range(rounds):
                await walk(store)
        finally:
            await store.close()
        return self._plans.read(
            {
                str(row["oid"]): row["relname"]
                for row in await self._connection.fetch(
                    "select oid, relname from pg_class where relnamespace = $1::text::regnamespace",
                    f'"{self._store.schema}"',
                )
            }
        )

    async def blocks_of_a_beat(self, agents: list[str], told: list[str]) -> int:
        """How many blocks a beat looks at. The first one in a session reads the catalogue, too, and does not count."""
        beat = (
            "explain (analyze, buffers, format json)"
            f""" select * from "{self._store.schema}".beat($1, 'h', 1, $2, 1, '{{}}', 'running', $3, 20)"""
        )
        for _ in range(2):
            (plan,) = json.loads(await self._connection.fetchval(beat, here, agents, told))
        blocks: int = plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
        return blocks


@pytest.fixture
async def watched(bare: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    plans = Plans()
    connect = lane.connect

    async def watching(dsn: str) -> asyncpg.Connection:
        connection = await connect(dsn)
        await plans.watch(connection)
        return connection

    await bare.migrate()
    monkeypatch.setattr(lane, "connect", watching)
    connection = await asyncpg.connect(bare.dsn)
    watched = Watched(bare, connection, plans)
    for table in ("jobs", "leases", "steps", "dedups", "attempts"):
        await watched.sql(f"alter table agentrt.{table} set (autovacuum_enabled = off)")
    yield watched
    await connection.close()


@pytest.mark.parametrize("analysed_while_empty", [False, True])
@pytest.mark.parametrize("rows", [0, 1_000, 300_000])
async def test_every_verb_reaches_the_jobs_by_an_index_and_sorts_none(
    watched: Watched, rows: int, analysed_while_empty: bool
) -> None:
    if analysed_while_empty:
        await watched.analyse()
    await watched.fill(rows)
    plans = await watched.plans_of_a_new_session()
    assert hot | others <= {plan.function for plan in plans if plan.scans}
    await watched.analyse()
    analysed = await watched.plans_of_a_new_session()
    if found := faults(plans + analysed):
        pytest.fail("\n".join(found), pytrace=False)


async def test_a_beat_skips_over_the_jobs_of_an_agent_however_many_are_ready(watched: Watched) -> None:
    await watched.fill(300_000)
    for agents, told in ((["a", "other"], []), (["a"], ["other"]), (["nobody sends to it"], ["a", "other"])):
        assert await watched.blocks_of_a_beat(agents, told) < 100, (agents, told)
    assert await watched.blocks_of_a_beat(["nobody sends to it"], []) < 3_000  # two are new: their jobs are counted
