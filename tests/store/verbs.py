"""Short forms of the store's verbs, for the tests of each of them. Written against the protocol only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import UUID

from agentrt.model import (
    AgentPolicy,
    Beat,
    Claimed,
    Failure,
    Finish,
    JobRow,
    NewJob,
    Reschedule,
    Sender,
    State,
    StepMark,
    StepRecord,
    SweepReport,
    Wanted,
)
from agentrt.store import Store
from tests.conftest import Clock
from tests.support import eventually

here, elsewhere = UUID(int=1), UUID(int=2)  # two supervisors
lease_s = 30.0
oops = Failure("error", "ValueError", "no such otter", "Traceback …")


def message(agent: str = "a", key: str | None = None, payload: bytes = b"{}", **more: object) -> NewJob:
    return replace(NewJob(agent, payload, key), **more)  # type: ignore[arg-type] # a wrong field is a TypeError


def policy(agent: str = "a", *, limit: int | None = None, max_attempts: int = 5, lease: float = lease_s) -> AgentPolicy:
    return AgentPolicy(agent, concurrency=None, limit=limit, max_attempts=max_attempts, lease_s=lease)


async def send(store: Store, *jobs: NewJob) -> list[int]:
    return [sent.id for sent in await store.send(jobs)]


async def send_one(store: Store, agent: str = "a", key: str | None = None, **more: object) -> int:
    (job_id,) = await send(store, message(agent, key, **more))  # type: ignore[arg-type]
    return job_id


def wanted(
    supervisor: UUID,
    agents: Sequence[tuple[AgentPolicy, int]],
    total: int,
    *,
    alone: bool = True,
    floors: tuple[int, ...] | None = None,
) -> Wanted:
    return Wanted(supervisor, tuple(agents), total, alone, floors)


async def claim(
    store: Store, agent: str = "a", *, most: int = 100, supervisor: UUID = here, like: AgentPolicy | None = None
) -> list[Claimed]:
    return await store.claim(wanted(supervisor, [(like or policy(agent), most)], most))


async def claim_one(
    store: Store, agent: str = "a", *, supervisor: UUID = here, like: AgentPolicy | None = None
) -> Claimed:
    """The one job that can be claimed at this moment: asks for two, so that a second one shows."""
    (job,) = await claim(store, agent, most=2, supervisor=supervisor, like=like)
    return job


async def running_one(store: Store, *, like: AgentPolicy | None = None, **more: object) -> Claimed:
    """A job that was sent and claimed just now, the only one that could be."""
    await send_one(store, **more)  # type: ignore[arg-type]
    return await claim_one(store, like=like)


async def lapse(store: Store, clock: Clock, limit: int = 10) -> SweepReport:
    """Let the leases of the usual length run out, and sweep."""
    await clock.advance(lease_s + 1)
    return await store.sweep(limit)


async def succeed(store: Store, *jobs: Claimed, result: str = "null") -> set[int]:
    """Returns the ids whose end was accepted."""
    return await end(store, *(Finish(job.id, job.fence, State.succeeded, result) for job in jobs))


async def fail(store: Store, *jobs: Claimed) -> set[int]:
    """For the last time: the jobs end as failed."""
    return await end(store, *(Finish(job.id, job.fence, State.failed, failure=oops) for job in jobs))


async def end(store: Store, *outcomes: Finish) -> set[int]:
    return await store.finish(outcomes, keyed=True, limited=False)


async def turn(
    store: Store,
    *jobs: Claimed,
    agent: str = "a",
    most: int = 100,
    like: AgentPolicy | None = None,
    key_state: str | None = None,
) -> tuple[set[int], list[Claimed]]:
    """End these jobs and claim others: the ids whose end was accepted, and what was claimed. `key_state`: of those with a key."""
    keyed = {job.agent for job in jobs if job.key is not None}
    outcomes = [
        Finish(job.id, job.fence, State.succeeded, "null", key_state=None if job.key is None else key_state)
        for job in jobs
    ]
    limited = like is not None and like.limit is not None
    return await store.turn(outcomes, wanted(here, [(like or policy(agent), most)], most), keyed=keyed, limited=limited)


async def give_back(
    store: Store,
    *jobs: Claimed,
    delay_s: float = 0.0,
    counts: bool = True,
    failure: Failure | None = None,
    loose: bool = False,
) -> set[int]:
    outcomes = [Reschedule(job.id, job.fence, delay_s, counts, failure, loose) for job in jobs]
    return await store.reschedule(outcomes, keyed=True, limited=False)


async def record(store: Store, job: Claimed, step: str, output: str) -> str | None:
    """A step's output; returns the one that counts."""
    state = await store.record(Sender(job.id, job.fence), StepRecord(StepMark(step), output=output))
    return state.output


def outputs(job: Claimed) -> dict[str, str | None]:
    """The recorded steps that came with a claim."""
    return {step: state.output for step, state in job.steps.items()}


async def row_of(store: Store, job_id: int) -> JobRow:
    row = await store.job(job_id)
    assert row is not None, f"there is no job {job_id}"
    return row


async def state_of(store: Store, job_id: int) -> str:
    state: str = (await row_of(store, job_id))["state"]
    return state


async def states_of(store: Store, job_ids: Sequence[int]) -> list[str]:
    return [await state_of(store, job_id) for job_id in job_ids]


async def in_line(store: Store, agent: str = "a") -> list[int]:
    """The ids that can be claimed, in the order of the claims, each ended before the next is asked for."""
    order = []
    while jobs := await claim(store, agent, most=1):
        order += [job.id for job in jobs]
        assert await succeed(store, *jobs) == {jobs[0].id}
    return order


@asynccontextmanager
async def others(store: Store, count: int) -> AsyncIterator[list[Store]]:
    """The same database through other connections: one store is one claim at a time."""
    twins = [store.twin(30.0) for _ in range(count)]
    try:
        yield twins
    finally:
        await asyncio.gather(*(twin.close() for twin in twins))


class Ears:
    """What was heard since the last look, as (channel, payload)."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    async def until(self, channel: str) -> list[tuple[str, str]]:
        """Wait for a hint on this channel. Returns all that was heard up to now, and forgets it."""

        async def look() -> bool:
            return any(heard == channel for heard, _ in self.heard)

        await eventually(look, what=f"a hint on {channel!r}; heard {self.heard}")
        heard = self.heard.copy()
        self.heard.clear()
        return heard

    async def now(self, store: Store) -> list[str]:
        """The channels heard until now: hints come in the order of the commits, so a bell shows that all are here."""
        await beat(store)
        return [channel for channel, _ in await self.until("bell") if channel != "bell"]


async def beat(store: Store, supervisor: UUID = here, *, told: Sequence[str] = (), names_max: int = 20) -> Beat:
    about = {"host": "h", "pid": 1, "agents": ["a"], "slots": 1, "limits": {}, "state": "running"}
    return await store.beat(supervisor, {**about, "told": told, "names_max": names_max})


@asynccontextmanager
async def listening(store: Store) -> AsyncIterator[Ears]:
    ears = Ears()
    notifier = await store.listen(lambda channel, payload: ears.heard.append((channel, payload)))
    try:
        await beat(store)  # there is a supervisor that wants to be rung
        await ears.until("bell")
        yield ears
    finally:
        await notifier.close()
