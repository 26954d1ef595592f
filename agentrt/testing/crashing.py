"""A store that can crash an attempt before or after any of its writes: the attempt stops there and writes nothing more."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from agentrt.context import running
from agentrt.model import (
    Budget,
    Claimed,
    Finish,
    NewJob,
    NewQuestion,
    Park,
    Reschedule,
    Sender,
    Sent,
    StepMark,
    StepRecord,
    StepState,
    Wanted,
)
from agentrt.store.postgres import PostgresStore

Side = Literal["before", "after"]
sides: tuple[Side, ...] = ("before", "after")


class Crashed(BaseException):
    """What code of a crashed attempt meets when it goes on all the same: its process is no more."""


@dataclass(frozen=True, slots=True)
class Crash:
    """Where to crash: a boundary by its name (the same in every run, whatever the order of branches), and on which side of it."""

    boundary: str
    side: Side

    def __str__(self) -> str:
        return f"{self.side} {self.boundary}"


class CrashingStore(PostgresStore):
    """Names what the attempts of one job write, in order; stops them at `crash` for good."""

    def __init__(self, dsn: str, job_id: int, crash: Crash | None = None) -> None:
        super().__init__(dsn)
        self.boundaries: list[str] = []
        self.crashed = asyncio.Event()
        self.torn_down = False  # whoever still runs is not to be waited for
        self._job_id = job_id
        self._crash = crash
        self._counts: Counter[str] = Counter()

    @asynccontextmanager
    async def _boundary(self, job_ids: Collection[int], what: str) -> AsyncIterator[None]:
        name = self._name(job_ids, what)
        await self._pass(name, "before")
        yield
        await self._pass(name, "after")

    def _name(self, job_ids: Collection[int], what: str) -> str | None:
        """What a write of the job is called; None: it is one of another job."""
        if self._job_id not in job_ids:
            return None
        self._counts[what] += 1
        return what if self._counts[what] == 1 else f"{what} ({self._counts[what]})"

    async def _pass(self, name: str | None, side: Side) -> None:
        if name is None:
            return
        here = Crash(name, side)
        if here == self._crash:
            self.crashed.set()
        if self.torn_down:
            raise Crashed(str(here))
        if self.crashed.is_set():
            await asyncio.get_running_loop().create_future()  # until it is torn down
        if side == "after":
            self.boundaries.append(name)

    # -------------------------------------------------------------- what an attempt writes

    async def send(self, jobs: Sequence[NewJob], connection: Any = None, sender: Sender | None = None) -> list[Sent]:
        async with self._boundary([sender.job_id] if sender else [], _sending(jobs)):
            return await super().send(jobs, connection, sender)

    async def record(self, owner: Sender, record: StepRecord, connection: Any = None) -> StepState:
        what = "record" if record.done else "wait"
        async with self._boundary([owner.job_id], f"the {what} of {record.mark.id}"):
            return await super().record(owner, record, connection)

    async def await_job(self, owner: Sender, mark: StepMark, child: int, timeout_s: float | None) -> StepState | None:
        async with self._boundary([owner.job_id], f"the wait of {mark.id}"):
            return await super().await_job(owner, mark, child, timeout_s)

    async def open_decision(self, owner: Sender, mark: StepMark, question: NewQuestion) -> tuple[int, StepState]:
        async with self._boundary([owner.job_id], f"the question of {mark.id}"):
            return await super().open_decision(owner, mark, question)

    async def open_budget(self, owner: Sender, budget: Budget) -> tuple[int, float | None]:
        async with self._boundary([owner.job_id], "the opening of the budget"):
            return await super().open_budget(owner, budget)

    async def reserve(self, owner: Sender, usd: Decimal, tokens: int) -> str | None:
        async with self._boundary([owner.job_id], "a reservation"):
            return await super().reserve(owner, usd, tokens)

    async def settle(self, job_id: int, usd: Decimal, tokens: int) -> str | None:
        async with self._boundary([job_id], "the settling of a reservation"):
            return await super().settle(job_id, usd, tokens)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        attempt = running.get()
        async with super().transaction() as connection:
            yield connection
            name = self._name([attempt.job.id] if attempt else [], "the commit of a transaction")
            await self._pass(name, "before")
        await self._pass(name, "after")

    # -------------------------------------------------------------- how it ends

    async def finish(self, outcomes: Sequence[Finish], *, keyed: bool, limited: bool) -> set[int]:
        async with self._boundary([outcome.id for outcome in outcomes], "the end of the job"):
            return await super().finish(outcomes, keyed=keyed, limited=limited)

    async def turn(
        self, outcomes: Sequence[Finish], wanted: Wanted, *, keyed: Collection[str], limited: bool
    ) -> tuple[set[int], list[Claimed]]:
        async with self._boundary([outcome.id for outcome in outcomes], "the end of the job"):
            return await super().turn(outcomes, wanted, keyed=keyed, limited=limited)

    async def relay(self, outcomes: Sequence[Finish], job: NewJob, sender: Sender) -> tuple[set[int], Sent | None]:
        async with (
            self._boundary([outcome.id for outcome in outcomes], "the end of the job"),
            self._boundary([sender.job_id], _sending([job])),
        ):
            return await super().relay(outcomes, job, sender)

    async def reschedule(self, outcomes: Sequence[Reschedule], *, keyed: bool, limited: bool) -> set[int]:
        async with self._boundary([outcome.id for outcome in outcomes], "the end of an attempt"):
            return await super().reschedule(outcomes, keyed=keyed, limited=limited)

    async def park(self, outcomes: Sequence[Park], *, limited: bool) -> set[int]:
        async with self._boundary([outcome.id for outcome in outcomes], "the parking"):
            return await super().park(outcomes, limited=limited)


def _sending(jobs: Sequence[NewJob]) -> str:
    steps = [job.step.id for job in jobs if job.step is not None]
    more = f" and {len(steps) - 3} more" if len(steps) > 3 else ""
    return f"the send of {', '.join(steps[:3])}{more}"
