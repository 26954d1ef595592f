"""`crash_everywhere`: the same agent again and again, with a crash before and after each thing that it stores."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast
from uuid import UUID

from agentrt.agent import Agent
from agentrt.client import Client, Job, connect
from agentrt.config import Settings
from agentrt.engine.supervisor import Supervisor
from agentrt.errors import DecisionRefused, JobError, UsageError
from agentrt.model import JobRow, State
from agentrt.store import Store
from agentrt.store.postgres.throwaway import empty
from agentrt.testing.compare import Facts, changes, differences, look, varying
from agentrt.testing.crashing import Crash, CrashingStore, sides
from agentrt.testing.database import throwaway_database
from agentrt.testing.inside import Clock, known_here

R = TypeVar("R")
Decide = Callable[[str, tuple[str, ...]], str]

# A job that waits is parked soon, so that time can pass; what is lost with a crash is taken back at once, whatever the lease.
_settings = Settings(slots=20, lease_s=10, poll_s=5, warm_s=0.1, drain_s=5)
_look_every_s = 0.01
_look_max = 1_000
_differences_shown_max = 8


async def crash_everywhere(
    agent: Agent[..., R],
    /,
    *args: Any,
    agents: Sequence[Agent[..., Any]] = (),
    decide: Decide | None = None,
    prepare: Callable[[str], Awaitable[None]] | None = None,
    timeout_s: float = 30.0,
    **kwargs: Any,
) -> R:
    """Run `agent(*args, **kwargs)` to its end, then once more for each crash that could meet it; returns what it returned.

    There is a crash before and one after each thing that its attempts store: steps, waits, messages, commits, its end. Each run
    is a job in a throwaway database (see `throwaway_database`), emptied between them; after the crash another supervisor finishes
    it. It must end the same way, with the same recorded steps (ids, kinds, outputs), and have sent the same messages, each once.
    What differs already between two runs without a crash (a time, a random number) is compared only with what was recorded
    before it.

    Time does not have to be waited for: when every job waits for a moment, the database's clock is moved there.

    Args:
        agents: the other agents that take part. Messages to one that is not given are stored, and stay.
        decide: answers questions: it gets the text and the options, and returns an option. None: questions expire.
        prepare: a coroutine function that makes or empties what the agent keeps elsewhere, its own tables say; called with the
            database's address before each run.
        timeout_s: the longest one run may take.

    Raises:
        AssertionError: after some crash something was different; the text says after which, and what.
        JobFailed, JobCancelled: so the agent ends without any crash as well, and every crash led to the same.
        UsageError: the job waits for something that cannot come: an agent that was not given, an answer.
    """
    plan = _Plan(agent, args, kwargs, {one.name: one for one in (agent, *agents)}, decide, prepare, timeout_s)
    async with throwaway_database() as url:
        first = await _run(plan, url, None)
        free = varying(first.facts, (await _run(plan, url, None)).facts)
        found = []
        crashes = [Crash(name, side) for name in first.boundaries for side in sides]
        for crash in crashes:
            seen = await _run(plan, url, crash)
            if wrong := differences(first.facts, seen.facts, free) + changes(seen.kept, seen.facts):
                found.append((crash, wrong))
    if found:
        raise AssertionError(_report(plan, crashes, found))
    if isinstance(first.ended, JobError):
        raise first.ended
    return cast("R", first.ended)


def _report(plan: _Plan, crashes: list[Crash], found: list[tuple[Crash, list[str]]]) -> str:
    lines = [f"{plan.agent.name}: {len(found)} of {len(crashes)} crashes changed what it does."]
    for crash, wrong in found:
        lines.append(f"A crash {crash}:")
        lines += [f"    {text}" for text in wrong[:_differences_shown_max]]
        if len(wrong) > _differences_shown_max:
            lines.append(f"    and {len(wrong) - _differences_shown_max} more")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Plan:
    agent: Agent[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    agents: dict[str, Agent[..., Any]]
    decide: Decide | None
    prepare: Callable[[str], Awaitable[None]] | None
    timeout_s: float


@dataclass(slots=True)
class _Seen:
    """What came of one run. `kept`: what was recorded for good when it crashed."""

    facts: Facts
    boundaries: list[str]
    ended: object
    kept: Facts = field(default_factory=dict)


async def _run(plan: _Plan, url: str, crash: Crash | None) -> _Seen:
    """One job, from its message to its end, through a crash when one is given (and its place is reached)."""
    await empty(url)
    if plan.prepare is not None:
        await plan.prepare(url)
    async with connect(url) as client:
        job = await plan.agent.options(client=client).send(*plan.args, **plan.kwargs)
        world = _World(plan, client, url, job.id)
        kept: Facts = {}
        store = CrashingStore(url, job.id, crash)
        try:
            async with asyncio.timeout(plan.timeout_s):
                if await _live(plan, url, store, world):
                    kept = await look(client.store, job.id, recorded=True)
                    await _live(plan, url, CrashingStore(url, job.id), world)
                ended = await _outcome(job)
        except TimeoutError:
            row = await client.store.job(job.id)
            raise AssertionError(
                f"{plan.agent.name}: {f'after a crash {crash}' if crash else 'without any crash'} it had not ended within"
                f" {plan.timeout_s:g} s; it was {row and row['state']}, last error: {row and row['last_error']}"
            ) from None
        return _Seen(await look(client.store, job.id), store.boundaries, ended, kept)


async def _outcome(job: Job[Any]) -> object:
    try:
        return await job.result()
    except JobError as error:
        return error


async def _live(plan: _Plan, url: str, store: CrashingStore, world: _World) -> bool:
    """One supervisor, until the job has ended or it crashed; whether it crashed. Then nothing of it is left."""
    supervisor = Supervisor(plan.agents, store, _settings)
    try:
        async with asyncio.TaskGroup() as group:
            life = group.create_task(supervisor.run())
            watch = group.create_task(world.go_round())
            crashed = group.create_task(store.crashed.wait())
            with known_here(supervisor, url):
                await asyncio.wait([life, watch, crashed], return_when=asyncio.FIRST_COMPLETED)
            watch.cancel()
            crashed.cancel()
            if store.crashed.is_set():
                store.torn_down = True
                life.cancel()
            else:
                supervisor.drain()
    except BaseExceptionGroup as group_error:  # of the user's callback, or what keeps the supervisor from running
        raise group_error.exceptions[0] from None
    finally:
        store.torn_down = True
        await store.close()
    crash = store.crashed.is_set()
    if crash:
        await _release(world.client.store, supervisor.id, world.job_id)
    return crash


async def _release(store: Store, dead: UUID, job_id: int) -> None:
    """Take back what the crashed supervisor held, as a minder does; a transaction that it had open is still being undone."""
    while True:
        await store.sweep(_look_max, dead)
        row = await store.job(job_id)
        if row is None or State(row["state"]).final or row["owner_id"] != dead:
            break
        await asyncio.sleep(_look_every_s)
    await store.leave(dead)


class _World:
    """What is outside of the agents: people who answer, and time that passes."""

    def __init__(self, plan: _Plan, client: Client, url: str, job_id: int) -> None:
        self.client = client
        self.job_id = job_id
        self._plan = plan
        self._clock = Clock(url)

    async def go_round(self) -> None:
        """Until the job has ended. Raises `UsageError` when it never will."""
        store = self.client.store
        stuck = 0
        while True:
            row = await store.job(self.job_id)
            if row is not None and State(row["state"]).final:
                return
            waits = await self._answer() or await self._let_time_pass()
            stuck = 0 if waits else stuck + 1
            if stuck > 20:  # looks; one alone may fall between an answer and the job that it wakes
                raise UsageError(await self._what_is_missing())
            await asyncio.sleep(_look_every_s)

    async def _answer(self) -> bool:
        questions = await self.client.store.decisions() if self._plan.decide is not None else []
        for question in questions:
            assert self._plan.decide is not None
            option = self._plan.decide(question["question"], tuple(question["options"]))
            with suppress(DecisionRefused):  # its job has ended meanwhile
                await self.client.decide(question["id"], option, by=(question["who"] or ["crash_everywhere"])[0])
        return bool(questions)

    async def _let_time_pass(self) -> bool:
        """When all jobs wait, move the clock to the next moment that one of them waits for. False: none waits for a moment."""
        rows = await self.client.store.jobs(state=None, agent=None, key=None, limit=_look_max)
        jobs = [row for row in rows if self._known(row)]
        if any(row["state"] in (State.running, State.ready) for row in jobs):
            return True
        waiting = [row for row in jobs if row["state"] in (State.scheduled, State.parked) and _has_moment(row)]
        if not waiting:
            return False
        next_one = min(waiting, key=lambda row: row["run_after"])
        standing = await self.client.store.standing(next_one["id"])
        if standing is not None:
            # By the database's clock alone: a crash may have cancelled the last move, before or after it.
            await self._clock.advance(max(0.001, standing["due_in_s"]))
        return True

    def _known(self, row: JobRow) -> bool:
        """Unfinished, and somebody here runs it."""
        return not State(row["state"]).final and row["job_type"] in self._plan.agents

    async def _what_is_missing(self) -> str:
        store = self.client.store
        waits = [step["step"] for step in await store.steps_of(self.job_id) if not step["done"]]
        unknown = {row["agent"] for row in await store.counts() if row["agent"] not in self._plan.agents}
        return (
            f"{self._plan.agent.name} waits for what cannot come: {', '.join(waits) or 'nothing that is recorded'}."
            + (f" These agents were not given: agents=[{', '.join(sorted(unknown))}]." if unknown else "")
            + (" Questions are answered by decide=." if self._plan.decide is None and await store.decisions() else "")
        )


def _has_moment(row: JobRow) -> bool:
    """Whether it is due at a moment, and not only woken by an answer."""
    return row["run_after"] is not None and row["run_after"].tzinfo is not None
