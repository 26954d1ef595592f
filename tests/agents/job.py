"""A job without a database, which keeps its steps over its attempts; and all that an error carries."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from agentrt import Fail, RetryAfter
from agentrt.context import Attempt, running
from agentrt.model import Claimed, Sender, StepRecord, StepState

R = TypeVar("R")


@dataclass
class Job(Generic[R]):
    """One job. `waits`: what each `RetryAfter` asked for; `failures`: the attempts that were used up."""

    run: Callable[[], Awaitable[R]]
    steps: dict[str, StepState] = field(default_factory=dict)
    waits: list[float] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)

    async def attempt(self) -> R:
        """Run once; raises what the agent raised."""
        claimed = Claimed(
            id=1,
            fence=1,
            agent="test",
            key=None,
            attempt=1,
            max_attempts=5,
            payload="{}",
            priority=5,
            ord=1,
            root=1,
            hops=0,
            deadline_s=None,
            account=None,
            alone=False,
            lease_s=5,
            waited_s=0,
            steps=dict(self.steps),
        )
        attempt = Attempt(claimed, cast("Any", self), cast("Any", None))
        attempt.task = cast("asyncio.Task[None]", asyncio.current_task())
        token = running.set(attempt)
        try:
            return await self.run()
        finally:
            running.reset(token)

    async def finish(self, attempts_max: int = 5) -> R:
        """Run until it ends, waiting as told, not at all after a failure. Raises `Fail`, or the last failure."""
        while True:
            try:
                return await self.attempt()
            except RetryAfter as later:
                self.waits.append(later.seconds)
                await asyncio.sleep(later.seconds)
            except Fail:
                raise
            except Exception as error:
                self.failures.append(error)
                if len(self.failures) >= attempts_max:
                    raise

    async def record(self, _owner: Sender, record: StepRecord) -> StepState:
        state = StepState(record.kind, record.done, record.output, record.failure, mark=record.mark)
        if record.failure is not None:
            return state  # it leaves the agent, whose next attempt runs the step again
        return self.steps.setdefault(record.mark.id, state)


def everything(error: BaseException, *, but_of: str) -> str:
    """The error with its chain and the values in its frames, but those of one file: what an error reporter might keep."""
    shown = []
    link: BaseException | None = error
    while link is not None:
        frames = [frame for frame, _ in traceback.walk_tb(link.__traceback__) if frame.f_code.co_filename != but_of]
        shown += [repr(link), *(f"{name} = {value!r}" for frame in frames for name, value in frame.f_locals.items())]
        link = link.__cause__ or link.__context__
    return "\n".join(shown)
