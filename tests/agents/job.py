"""A job without a database: runs an agent attempt after attempt, keeping its steps, as the runtime would."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from agentrt import Fail, RetryAfter
from agentrt.context import Attempt, running
from agentrt.model import Claimed

R = TypeVar("R")


@dataclass
class Job(Generic[R]):
    """One job. `waits`: what each `RetryAfter` asked for; `failures`: the attempts that were used up."""

    run: Callable[[], Awaitable[R]]
    steps: dict[str, str] = field(default_factory=dict)
    waits: list[float] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)

    async def attempt(self) -> R:
        """Run once; raises what the agent raised."""
        claimed = Claimed(1, 1, "test", None, 1, 5, "{}", 5, 1, 1, 5.0, 0.0, dict(self.steps))
        token = running.set(Attempt(claimed, cast("Any", self), cast("Any", None)))
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

    async def record_step(self, _job_id: int, _fence: int, step_id: str, output: str) -> str:
        return self.steps.setdefault(step_id, output)
