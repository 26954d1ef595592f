"""The committer: outcomes of many attempts, stored together.

A flush starts when the one before has returned, so an idle system adds no delay and a busy one shares its commits.
An outcome is kept until the database has taken or refused it; through an outage it waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import structlog

from agentrt import codec
from agentrt.config import about, redact
from agentrt.context import Attempt
from agentrt.engine.look import Claims, batch_max
from agentrt.engine.stats import Stats
from agentrt.errors import StoreBusy, StoreRefused, StoreUnavailable
from agentrt.model import Failure, Finish, Outcome, Park, Reschedule, State
from agentrt.store import Store

log = structlog.get_logger("agentrt.committer")
T = TypeVar("T")
_worrying = frozenset(["failed", "retried", "lost"])  # what is logged as a warning
two_from = 20  # outcomes that wait: from so many on two batches are under way at a time


@dataclass(slots=True)
class Pending:
    """An outcome that is not settled yet."""

    attempt: Attempt
    outcome: Outcome | None
    ran_s: float
    doubtful: bool = False  # sent once, answer lost
    rode: bool = False  # with a statement that failed
    settled: bool = False

    @property
    def key(self) -> tuple[int, int]:
        return self.attempt.job.id, self.attempt.job.fence

    @property
    def keyed(self) -> bool:
        return self.attempt.job.key is not None

    @property
    def rides(self) -> bool:
        """Whether another statement may take it along: a plain end, for which no mailbox, limit or lost answer is looked at."""
        plain = isinstance(self.outcome, Finish) and not self.outcome.reopen
        return plain and not (self.keyed or self.attempt.job.limited or self.doubtful or self.rode)


Write = Callable[[Sequence[Pending]], Awaitable[tuple[set[int], Callable[[], None]]]]


class Committer:
    """`put` never waits; `on_stored` is called with the attempts whose outcomes were settled.

    Two loops run `run`: while the database works on one batch, the other is made. Of several processes only the oldest overlaps
    them so: the others use the time in which one waits, and larger batches cost all of them less.
    """

    loops = 2

    def __init__(self, store: Store, stats: Stats) -> None:
        self._store = store
        self._stats = stats
        self._log = log.bind()  # as in Runner
        self._tells_all = self._log.is_enabled_for(logging.INFO)
        self._queue: dict[tuple[int, int], Pending] = {}  # by job and fence, in the order of their ends
        self._under_way = 0
        self._rung = asyncio.Event()
        self._fault: Exception | None = None  # met while ends were settled that rode with another statement
        self.on_stored: Callable[[Sequence[Attempt]], None] = lambda _attempts: None
        self.overlaps = True
        self.claims: Claims | None = None  # None: nothing is claimed along

    def put(self, attempt: Attempt, outcome: Outcome | None, ran_s: float) -> None:
        """Take an outcome. None: the lease was lost, there is nothing to store."""
        job = attempt.job
        self._queue[job.id, job.fence] = Pending(attempt, outcome, ran_s)
        self._rung.set()

    async def run(self) -> None:
        while True:
            if self._fault is not None:
                fault, self._fault = self._fault, None
                raise fault
            batch = self._take()
            if batch:
                await self._flush(batch)
                await asyncio.sleep(0)  # what it claimed runs: short jobs end here, and go with those that wait
            else:
                self._rung.clear()
                await self._rung.wait()

    def _take(self) -> list[Pending]:
        """What goes next: all that is there, unless a batch is under way. Many go in two halves, so that the loops take turns."""
        count = len(self._queue)
        if count < two_from or not self.overlaps:
            count = 0 if self._under_way else count
        elif not self._under_way:
            count = (count + 1) // 2
        keys = dict(islice(self._queue, min(count, batch_max)))  # of two attempts of one job the later one
        return [self._queue.pop(key) for key in keys.items()]

    def take_along(self, *, older_than: int) -> Sequence[Pending]:
        """Ends for another statement, which `carry` is called with; none when there are many, which go together.

        Jobs are locked in the order of their ids, and that statement locks the job `older_than`.
        """
        if len(self._queue) >= two_from:
            return ()
        riding = {item.attempt.job.id: item for item in self._queue.values() if item.rides}
        older = [item for job_id, item in riding.items() if job_id < older_than]
        for item in older:
            del self._queue[item.key]
        return older

    async def carry(
        self, items: Sequence[Pending], write: Callable[[Sequence[Finish]], Awaitable[tuple[set[int], T]]]
    ) -> T:
        """Store ends by a statement that stores something else too. Raises what it raises, with the ends in the queue again."""
        try:
            accepted, rest = await write([item.outcome for item in items if isinstance(item.outcome, Finish)])
        except BaseException as error:
            for item in items:
                item.rode = True
                item.doubtful = isinstance(error, StoreUnavailable) or not isinstance(error, Exception)
            self._back(items)
            raise
        try:
            self._settle(items, accepted)
        except Exception as error:  # what came besides is stored all the same: the loop dies of it, not who sent that
            self._fault = error
            self._back(items)
        return rest

    def _back(self, items: Sequence[Pending]) -> None:
        """Put back in the queue, at its front, what was not settled."""
        self._queue = {item.key: item for item in items if not item.settled} | self._queue
        self._rung.set()

    async def _flush(self, batch: list[Pending]) -> None:
        """Store a batch. Raises `StoreError` with what was not settled in the queue again."""
        self._under_way += 1
        try:
            lost = [item for item in batch if item.outcome is None]
            if lost:
                self._settle(lost, ())
            for kind, write in ((Finish, self._finish), (Reschedule, self._reschedule), (Park, self._park)):
                items = [item for item in batch if isinstance(item.outcome, kind)]
                if items:
                    await self._store_items(items, write)
        except BaseException:
            self._back(batch)
            raise
        finally:
            self._under_way -= 1
            self._rung.set()  # what came meanwhile may be for either loop

    async def _finish(self, items: Sequence[Pending]) -> tuple[set[int], Callable[[], None]]:
        """Store ends; where there may be more to do, the same statement claims it. The claimed jobs start when all is settled."""
        jobs = [item.attempt.job for item in items]
        ending = Counter([job.agent for job in jobs])
        mailboxes = frozenset([(job.agent, job.key) for job in jobs if job.key is not None])
        claims = self.claims
        look = None if claims is None else claims.along(ending, mailboxes)
        if claims is None or look is None:
            return await self._finish_only(items)
        outcomes = [item.outcome for item in items if isinstance(item.outcome, Finish)]
        limited = any(job.limited for job in jobs)
        try:
            keyed = {agent for agent, _ in mailboxes}
            accepted, claimed = await self._store.turn(outcomes, look.wanted, keyed=keyed, limited=limited)
        except BaseException:
            claims.failed(look)
            raise
        return accepted, lambda: claims.claimed(look, claimed)

    async def _finish_only(self, items: Sequence[Pending]) -> tuple[set[int], Callable[[], None]]:
        outcomes = [item.outcome for item in items if isinstance(item.outcome, Finish)]
        keyed = any(item.keyed for item in items)
        limited = any(item.attempt.job.limited for item in items)
        return await self._store.finish(outcomes, keyed=keyed, limited=limited), _nothing

    async def _reschedule(self, items: Sequence[Pending]) -> tuple[set[int], Callable[[], None]]:
        outcomes = [item.outcome for item in items if isinstance(item.outcome, Reschedule)]
        keyed = any(item.keyed for item in items)
        limited = any(item.attempt.job.limited for item in items)
        return await self._store.reschedule(outcomes, keyed=keyed, limited=limited), _nothing

    async def _park(self, items: Sequence[Pending]) -> tuple[set[int], Callable[[], None]]:
        outcomes = [item.outcome for item in items if isinstance(item.outcome, Park)]
        return await self._store.park(outcomes, limited=any(item.attempt.job.limited for item in items)), _nothing

    async def _store_items(self, items: Sequence[Pending], write: Write) -> None:
        try:
            accepted, then = await write(items)
        except StoreBusy:
            await self._store_late(items, write)
            return
        except StoreUnavailable:
            for item in items:
                item.doubtful = True
            raise
        except StoreRefused as error:
            await self._store_one_by_one(items, write, error)
            return
        try:
            refused = [item for item in items if item.attempt.job.id not in accepted and item.doubtful]
            if refused and isinstance(refused[0].outcome, Finish):
                accepted |= await self._store.finished_by([(i.attempt.job.id, i.attempt.job.fence) for i in refused])
            self._settle(items, accepted)
        finally:
            then()

    async def _store_late(self, items: Sequence[Pending], write: Write) -> None:
        """Somebody's transaction holds a mailbox. Its end has to wait, but no slot, no lease and no other end with it."""
        held = [item for item in items if item.keyed] or items
        free = [item for item in items if not item.keyed and held is not items]
        if free:
            await self._store_items(free, write)
        self._under_way -= 1  # the other loop need not wait
        self._rung.set()
        try:
            await self._store_items(held, self._finish_only)
        finally:
            self._under_way += 1

    async def _store_one_by_one(self, items: Sequence[Pending], write: Write, error: StoreRefused) -> None:
        """The database refused the batch as a whole: find the item that it cannot take, and end that job as failed."""
        if len(items) > 1:
            for item in items:
                await self._store_items([item], write)
            return
        (item,) = items
        job = item.attempt.job
        text = codec.storable_text(f"its outcome could not be stored: {redact(str(error))}")
        plain = Finish(job.id, job.fence, State.failed, failure=Failure("unstorable", "StoreRefused", text))
        accepted = await self._store.finish([plain], keyed=item.keyed, limited=job.limited)
        item.outcome = plain  # only now: had this been refused too, the fault would not be in the outcome
        self._settle([item], accepted)

    def _settle(self, items: Sequence[Pending], accepted: Container[int]) -> None:
        """Say what became of them, and free their slots. Should that fail, they are as doubtful as after a lost answer."""
        try:
            verbs = [_verb(item.outcome) if item.attempt.job.id in accepted else "lost" for item in items]
            self._stats.outcomes.update(verbs)  # at once: to count in a Counter one by one takes five times as long
            if self._tells_all or not _worrying.isdisjoint(verbs):
                for item, verb in zip(items, verbs, strict=True):
                    self._tell(item, verb)
            self.on_stored([item.attempt for item in items])
        except Exception:
            for item in items:
                item.doubtful = True
            raise
        for item in items:
            item.settled = True

    def _tell(self, item: Pending, verb: str) -> None:
        if not (self._tells_all or verb in _worrying):
            return
        say = self._log.warning if verb in _worrying else self._log.info
        event = "job.lease_lost" if verb == "lost" else "job." + verb
        say(event, **about(item.attempt.job), ran_s=round(item.ran_s, 4), **_details(item, verb))


def _nothing() -> None:
    """What follows on outcomes with which nothing was claimed."""


def _verb(outcome: Outcome | None) -> str:
    """What has happened to a job whose outcome was accepted."""
    if isinstance(outcome, Finish):
        return outcome.state
    if isinstance(outcome, Park):
        return "parked"
    if isinstance(outcome, Reschedule):
        return "released" if outcome.failure is None else "retried" if outcome.counts else "later"
    raise AssertionError("an outcome that was accepted")


def _details(item: Pending, verb: str) -> dict[str, object]:
    """What is said with it."""
    outcome = item.outcome
    if verb == "lost":
        stop = item.attempt.stop_text or "refused by the fence"
        return {"stop": stop, "meaning": "its late result was dropped; another run of it counts"}
    if isinstance(outcome, Park):
        return {"waits": list(outcome.waits)}
    failure = None if outcome is None else outcome.failure
    more: dict[str, object] = {} if failure is None else {"reason": failure.reason, "error": failure.line}
    if isinstance(outcome, Reschedule):
        more["delay_s"] = round(outcome.delay_s, 3)
    return more
