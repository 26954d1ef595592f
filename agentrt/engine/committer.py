"""The committer: outcomes of many attempts, stored together.

A flush starts when the one before has returned, so an idle system adds no delay and a busy one shares its commits.
An outcome is kept until the database has taken or refused it; through an outage it waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import structlog

from agentrt import codec
from agentrt.config import redact
from agentrt.context import Attempt
from agentrt.engine.stats import Stats
from agentrt.errors import StoreRefused, StoreUnavailable
from agentrt.model import Failure, Finish, Outcome, Park, Reschedule, State
from agentrt.store import Store

log = structlog.get_logger("agentrt.committer")
flush_max = 200

O = TypeVar("O", Finish, Reschedule, Park)  # noqa: E741 - an outcome


@dataclass(slots=True)
class _Pending:
    attempt: Attempt
    outcome: Outcome | None
    ran_s: float
    doubtful: bool = False  # sent once, answer lost


class Committer:
    """One loop. `put` never waits; `on_stored` is called for each attempt once its outcome is settled."""

    def __init__(self, store: Store, stats: Stats) -> None:
        self._store = store
        self._stats = stats
        self._queue: dict[tuple[int, int], _Pending] = {}  # by job and fence, in the order of their ends
        self._rung = asyncio.Event()
        self.on_stored: Callable[[Attempt], None] = lambda _attempt: None

    @property
    def empty(self) -> bool:
        return not self._queue

    def put(self, attempt: Attempt, outcome: Outcome | None, ran_s: float) -> None:
        """Take an outcome. None: the lease was lost, there is nothing to store."""
        self._queue[attempt.job.id, attempt.job.fence] = _Pending(attempt, outcome, ran_s)
        self._rung.set()

    async def run(self) -> None:
        while True:
            while self._queue:
                await self._flush(list(islice(self._queue.values(), flush_max)))
            self._rung.clear()
            await self._rung.wait()

    async def _flush(self, batch: list[_Pending]) -> None:
        """Store a batch and take it off the queue. Raises `StoreError` with what was not stored still queued."""
        for item in batch:
            if item.outcome is None:
                self._settle(item, accepted=False)
        finishes = [item for item in batch if isinstance(item.outcome, Finish)]
        reschedules = [item for item in batch if isinstance(item.outcome, Reschedule)]
        if finishes:
            await self._store_items(finishes, Finish, self._store.finish)
        parks = [item for item in batch if isinstance(item.outcome, Park)]
        if reschedules:
            await self._store_items(reschedules, Reschedule, self._store.reschedule)
        if parks:
            await self._store_items(parks, Park, self._park)

    async def _park(self, outcomes: Sequence[Park], *, keyed: bool, limited: bool) -> set[int]:
        return await self._store.park(outcomes, limited=limited)

    async def _store_items(
        self, items: list[_Pending], kind: type[O], write: Callable[..., Awaitable[set[int]]]
    ) -> None:
        outcomes = [item.outcome for item in items if isinstance(item.outcome, kind)]
        keyed = any(item.attempt.job.key is not None for item in items)
        limited = any(item.attempt.job.limited for item in items)
        try:
            accepted = await write(outcomes, keyed=keyed, limited=limited)
        except StoreUnavailable:
            for item in items:
                item.doubtful = True
            raise
        except StoreRefused as error:
            await self._store_one_by_one(items, kind, write, error)
            return
        refused = [item for item in items if item.attempt.job.id not in accepted and item.doubtful]
        if refused and kind is Finish:
            accepted |= await self._store.finished_by([(i.attempt.job.id, i.attempt.job.fence) for i in refused])
        for item in items:
            self._settle(item, accepted=item.attempt.job.id in accepted)

    async def _store_one_by_one(
        self, items: list[_Pending], kind: type[O], write: Callable[..., Awaitable[set[int]]], error: StoreRefused
    ) -> None:
        """The database refused the batch as a whole: find the item that it cannot take, and end that job as failed."""
        if len(items) > 1:
            for item in items:
                await self._store_items([item], kind, write)
            return
        (item,) = items
        job = item.attempt.job
        text = codec.storable_text(f"its outcome could not be stored: {redact(str(error))}")
        plain = Finish(job.id, job.fence, State.failed, failure=Failure("unstorable", "StoreRefused", text))
        accepted = await self._store.finish([plain], keyed=job.key is not None, limited=job.limited)
        item.outcome = plain  # only now: had this been refused too, the fault would not be in the outcome
        self._settle(item, accepted=job.id in accepted)

    def _settle(self, item: _Pending, *, accepted: bool) -> None:
        job = item.attempt.job
        del self._queue[job.id, job.fence]
        verb, more = (
            _verb(item.outcome) if accepted else ("lost", {"stop": item.attempt.stop_text or "refused by the fence"})
        )
        self._stats.outcomes[verb] += 1
        about = {
            "job_id": job.id,
            "agent": job.agent,
            "attempt": job.attempt,
            "key": job.key,
            "ran_s": round(item.ran_s, 4),
        }
        if verb == "lost":
            more["meaning"] = "its late result was dropped; another run of it counts"
        say = log.warning if verb in ("failed", "retried", "lost") else log.info
        say("job.lease_lost" if verb == "lost" else "job." + verb, **about, **more)
        self.on_stored(item.attempt)


def _verb(outcome: Outcome | None) -> tuple[str, dict[str, object]]:
    """The event of an accepted outcome, and what is said with it."""
    if isinstance(outcome, Park):
        return "parked", {"waits": list(outcome.waits)}
    failure = outcome.failure if outcome is not None else None
    more: dict[str, object] = {"reason": failure.reason, "error": failure.line} if failure is not None else {}
    if isinstance(outcome, Finish):
        return outcome.state.value, more
    if isinstance(outcome, Reschedule):
        more["delay_s"] = round(outcome.delay_s, 3)
        if failure is None:
            return "released", more
        return ("retried" if outcome.counts else "later"), more
    raise AssertionError("an outcome that was accepted")
