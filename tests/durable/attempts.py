"""Attempts driven by hand: many jobs at a time, each abandoned at a random moment and run again with what was recorded."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import uuid4

from agentrt.client import Client
from agentrt.context import Attempt, attempt_of, running
from agentrt.durable.branch import TaskFactory
from agentrt.model import AgentPolicy, Claimed, NewJob, Reschedule, Sender, StepRecord, StepState, Wanted
from agentrt.store.postgres import PostgresStore

Agent = Callable[[], Awaitable[Any]]
policy = AgentPolicy("driven", None, None, 1_000, 600.0)


class Crash:
    """The store as an attempt sees it, until the moment of its crash: after so many records nothing comes back any more."""

    def __init__(self, store: PostgresStore, after: int | None) -> None:
        self._store = store
        self._left = after
        self.crashed = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def record(self, owner: Sender, record: StepRecord, connection: Any = None) -> StepState:
        stored = await self._store.record(owner, record, connection)
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                self.crashed.set()
                await asyncio.Event().wait()
        return stored


class Driver:
    """Sends one job an agent, and runs attempts of all of them side by side."""

    def __init__(self, store: PostgresStore, agents: Sequence[Agent]) -> None:
        self._store = store
        self._agents = agents
        self._ids: list[int] = []

    async def __aenter__(self) -> Driver:
        TaskFactory.install(asyncio.get_running_loop(), attempt_of)
        sent = await self._store.send([NewJob(policy.name, b"{}") for _ in self._agents])
        self._ids = [one.id for one in sent]
        return self

    async def __aexit__(self, *_: object) -> None:
        for job_id in self._ids:
            await self._store.cancel(job_id, "the test is over")
        await self._store.close()

    async def attempt(self, crash_after: Callable[[int], int | None] = lambda _index: None) -> list[Any]:
        """One attempt of each job; what it returned, or None when it crashed. The jobs are ready again afterwards."""
        count = len(self._ids)
        jobs = {job.id: job for job in await self._store.claim(Wanted(uuid4(), ((policy, count),), count))}
        assert sorted(jobs) == sorted(self._ids)
        runs = [
            _run(jobs[job_id], agent, Crash(self._store, crash_after(index)))
            for index, (job_id, agent) in enumerate(zip(self._ids, self._agents, strict=True))
        ]
        results = await asyncio.gather(*runs)
        back = [Reschedule(job.id, job.fence, 0.0, False) for job in jobs.values()]
        assert len(await self._store.reschedule(back, keyed=False, limited=False)) == count
        return results

    async def recorded(self) -> list[dict[str, str]]:
        """The outputs of each job's recorded steps."""
        return [
            {row["step"]: row["output"] for row in await self._store.steps_of(job_id) if row["done"]}
            for job_id in self._ids
        ]


async def _run(job: Claimed, agent: Agent, store: Crash) -> Any:
    attempt = Attempt(job, store, Client(store))

    async def body() -> Any:
        task = asyncio.current_task()
        assert task is not None
        attempt.task = task
        running.set(attempt)
        return await agent()

    task = asyncio.get_running_loop().create_task(body(), context=contextvars.Context())
    crashed = asyncio.ensure_future(store.crashed.wait())
    await asyncio.wait([task, crashed], return_when=asyncio.FIRST_COMPLETED)
    crashed.cancel()
    if not task.done():
        doomed = [task, *attempt.tasks]
        attempt.stop("lost")
        for one in doomed:
            one.cancel()
        await asyncio.gather(*doomed, return_exceptions=True)
        return None
    assert attempt.stop_reason is None, attempt.stop_text
    return task.result()


def crash_at(seed: int, most: int) -> Callable[[int], int | None]:
    """For each job a number of records to crash after, the same for the same seed."""
    generator = random.Random(seed)
    numbers = [generator.randint(1, most) for _ in range(1_000)]
    return lambda index: numbers[index]
