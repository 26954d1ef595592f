"""The recorded steps of a job against the code that is here, dry: nothing is written, no step's function runs, nothing is sent.

The agent is run with an attempt whose every write holds the branch that wants it, for ever. The replay is at its end when
all branches are held, when one differs from what is recorded, or when the agent ends. What the agent does outside of
steps it does here too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from agentrt.agent import Agent
from agentrt.client import Client
from agentrt.context import Attempt, Begun, attempt_of, running
from agentrt.durable import fault
from agentrt.durable.branch import TaskFactory
from agentrt.model import Claimed, StepKind, StepState
from agentrt.store import Store

quiet_s = 0.05  # so long may a branch take between two recorded steps while another is held
within_s = 10.0
_no_fence = -1  # an attempt's write through a client of the agent's own is refused by any database

Verdict = Literal["diverged", "fresh", "waits", "finishes", "raises", "unclear"]


@dataclass(frozen=True, slots=True)
class Replay:
    """How far the code follows what is recorded.

    verdict: `diverged`, a step is another one than was recorded; `fresh`, it came to what is not recorded; `waits`, to a step
        without outcome; `finishes`; `raises`, an error leaves the agent; `unclear`, no end within the time given.
    step: that step.
    text: the place of it, the error, or the remark.
    recorded, found: both sides of what differs.
    unseen: recorded steps that the code did not come to.
    """

    job_id: int
    agent: str
    verdict: Verdict
    step: str | None = None
    text: str = ""
    recorded: str | None = None
    found: str | None = None
    unseen: tuple[str, ...] = ()


async def replay(agent: Agent[..., Any], job: Claimed, *, within_s: float = within_s) -> Replay:
    """Run `agent` over the steps that came with `job`, until it would do something new. Raises nothing of the agent's."""
    TaskFactory.install(asyncio.get_running_loop(), attempt_of)
    attempt = _DryAttempt(replace(job, fence=_no_fence))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_run(attempt, agent), name=f"replay-{job.id}")
        try:
            async with asyncio.timeout(within_s):
                await _until_quiet(attempt, task)
            late = False
        except TimeoutError:
            late = True
        result = _result(attempt, late=late, within_s=within_s)
        await _stop(attempt, task)
    return result


async def _run(attempt: _DryAttempt, agent: Agent[..., Any]) -> None:
    """The agent as the runner calls it; how it ends is noted on the attempt."""
    task = asyncio.current_task()
    assert task is not None
    attempt.task = task
    running.set(attempt)
    ending: tuple[Verdict, str]
    try:
        value = await agent.run(**agent.decode_arguments(attempt.job.payload))
        agent.encode_result(value)
        ending = ("finishes", "")
    except BaseException as error:  # also what would end a process: here it is one job's affair
        text = fault.text_of(error)
        ending = ("raises", f"{type(error).__name__}: {text}" if text else type(error).__name__)
    if not attempt.settled:
        attempt.ending = ending
    attempt.changed.set()


async def _until_quiet(attempt: _DryAttempt, task: asyncio.Task[None]) -> None:
    """Return when the agent has ended, has differed, or every branch of it is held as far as can be seen."""
    while attempt.ending is None and attempt.divergence is None:
        await attempt.changed.wait()
        attempt.changed.clear()
        others = [one for one in (task, *attempt.tasks) if not one.done() and one not in attempt.held]
        moves = -1
        while others and moves != attempt.moves and attempt.ending is None and attempt.divergence is None:
            moves = attempt.moves
            await asyncio.wait({task}, timeout=quiet_s)
        if attempt.held and attempt.ending is None:
            return


def _result(attempt: _DryAttempt, *, late: bool, within_s: float) -> Replay:
    job = attempt.job
    if attempt.divergence is not None:
        step, recorded, found = attempt.divergence
        return Replay(job.id, job.agent, "diverged", step, recorded=recorded, found=found)
    unseen = tuple(step for step in job.steps if not attempt.came_to(step))
    if attempt.ending is not None:
        return Replay(job.id, job.agent, *attempt.ending[:1], text=attempt.ending[1], unseen=unseen)
    held = next((one for one in attempt.held.values() if one is not None and one.known is None), None)
    if held is None:
        held = next((one for one in attempt.held.values() if one is not None), None)
    if late and not attempt.held:
        text = f"it came to no end within {within_s:g} s; what it waits for there is outside of steps"
        return Replay(job.id, job.agent, "unclear", text=text, unseen=unseen)
    if held is None:
        return Replay(job.id, job.agent, "fresh", text="the database is asked outside of a step", unseen=unseen)
    verdict: Verdict = "fresh" if held.known is None else "waits"
    return Replay(job.id, job.agent, verdict, held.mark.id, text=held.mark.place or "", unseen=unseen)


async def _stop(attempt: _DryAttempt, task: asyncio.Task[None]) -> None:
    """End it, with all that it has begun."""
    attempt.settled = True
    tasks = [task, *attempt.tasks]
    for one in tasks:
        one.cancel()
    done, _ = await asyncio.wait(tasks, timeout=within_s)
    for one in done:
        if not one.cancelled():
            one.exception()  # looked at, or asyncio complains of those that the agent did not wait for


class _DryAttempt(Attempt):
    """An attempt that goes as far as it can without doing anything."""

    def __init__(self, job: Claimed) -> None:
        store = cast("Store", _DryStore(self._hold))
        super().__init__(job, store, Client(store))
        self.changed = asyncio.Event()
        self.moves = 0
        self.held: dict[asyncio.Task[Any], Begun | None] = {}
        self.divergence: tuple[str, str, str] | None = None
        self.ending: tuple[Verdict, str] | None = None
        self._seen: set[str] = set()
        self._at: dict[asyncio.Task[Any] | None, Begun] = {}

    def begin(self, kind: StepKind, name: str, subject: object = None) -> Begun:
        begun = super().begin(kind, name, subject)
        self.moves += 1
        self._seen.add(begun.mark.id)
        self._at[asyncio.current_task()] = begun
        return begun

    def diverge(self, step_id: str, recorded: str, found: str) -> None:
        self.divergence = self.divergence or (step_id, recorded, found)
        self.changed.set()
        super().diverge(step_id, recorded, found)

    async def perform(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        await self._hold()

    async def until(self, step_id: str, due: float | None) -> StepState | None:
        await self._hold()
        return None  # never: what waits for it is cancelled

    def came_to(self, step_id: str) -> bool:
        """Whether the code called this step, or one that it is inside of, which a rerun does not look into."""
        return step_id in self._seen or any(step_id.startswith(f"{seen}/") for seen in self._seen)

    async def _hold(self) -> None:
        """Stop the branch that calls this, until it is cancelled."""
        task = asyncio.current_task()
        assert task is not None
        at = self._at.get(task)
        done = at is not None and at.known is not None and at.known.done
        self.held[task] = None if done else at
        self.changed.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.held.pop(task, None)


class _DryStore:
    """A store whose verbs hold who calls them. A reservation is granted: it is no step, and steps lie behind it."""

    def __init__(self, hold: Callable[[], Awaitable[None]]) -> None:
        self._hold = hold

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[None]]:
        async def held(*_values: object, **_options: object) -> None:
            await self._hold()

        return held

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        await self._hold()
        yield

    async def reserve(self, *_values: object) -> None:
        """Granted."""

    async def settle(self, *_values: object) -> None:
        """Nothing was set aside."""
