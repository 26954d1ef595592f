"""The hand-over: a message to an agent of this process is leased to it by the statement that stores it.

The ends of jobs that wait at that moment ride in the same statement, so two agents that send to each other cost one commit a hop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from agentrt.context import Attempt, through_outages
from agentrt.engine.claimer import Claimer
from agentrt.engine.committer import Committer, Pending
from agentrt.engine.runner import Runner
from agentrt.errors import AgentrtError, LeaseLost, StoreUnavailable
from agentrt.model import Claimed, NewJob, Sender, Sent, Taken, Wanted
from agentrt.store import Store


class HandOver:
    """What `context.HandOver` says: `offer` sets a slot aside, `hand` sends into it."""

    def __init__(self, store: Store, runner: Runner, claimer: Claimer, committer: Committer) -> None:
        self._store = store
        self._runner = runner
        self._claimer = claimer
        self._committer = committer

    def offer(self, agent: str) -> Wanted | None:
        return self._claimer.offer(agent)

    async def hand(self, wanted: Wanted, attempt: Attempt, job: NewJob) -> Sent:
        ends: Sequence[Pending] = ()
        waits = (
            job.key is not None or job.dedup is not None or job.asks
        )  # perhaps, for others who send: no end waits with it
        if not waits and not self._claimer.looks_next:
            ends = self._committer.take_along(older_than=attempt.job.id)
        answer: asyncio.Future[Sent] = asyncio.get_running_loop().create_future()
        self._runner.spawn(self._hand(wanted, attempt, job, ends, answer), "hand-over")
        return await answer

    async def _hand(
        self, wanted: Wanted, attempt: Attempt, job: NewJob, ends: Sequence[Pending], answer: asyncio.Future[Sent]
    ) -> None:
        sender = replace(attempt.owner, takes=wanted)
        asked_at = granted_at = 0.0
        claimed: Claimed | None = None

        async def once() -> Sent:
            nonlocal asked_at, ends
            riding, ends = ends, ()  # once: should it fail, they are stored without this
            asked_at = time.monotonic()  # before the statement: our idea of the lease must not outlast the database's
            return await self._send(job, sender, riding)

        try:
            sent = await through_outages(once)
            if sent.taken is not None:
                granted_at = asked_at + sent.taken.leased_s
                claimed = _claimed(attempt, job, sent.id, sent.taken, wanted)
            if not answer.done():  # else the caller was cancelled
                answer.set_result(sent)
        except (Exception, LeaseLost) as error:
            if not answer.done():
                answer.set_exception(error)
        finally:
            answer.cancel()  # if it is not done: this task was cancelled
            self._claimer.handed(wanted, granted_at, claimed)

    async def _send(self, job: NewJob, sender: Sender, riding: Sequence[Pending]) -> Sent:
        if riding:
            try:
                sent = await self._committer.carry(riding, lambda ends: self._store.relay(ends, job, sender))
            except StoreUnavailable:
                raise
            except AgentrtError:  # it changed nothing. Was it the message, or one of the ends?
                pass
            else:
                if sent is None:
                    raise LeaseLost(f"job {sender.job_id}, fence {sender.fence}")
                return sent
        (sent,) = await self._store.send([job], None, sender)
        return sent


def _claimed(attempt: Attempt, job: NewJob, job_id: int, taken: Taken, wanted: Wanted) -> Claimed:
    policy, _ = wanted.agents[0]
    return Claimed(
        id=job_id,
        fence=1,
        agent=job.agent,
        key=job.key,
        attempt=1,
        max_attempts=job.max_attempts or policy.max_attempts,
        payload=job.payload.decode(),
        priority=job.priority,
        ord=0,
        root=attempt.job.root,
        lease_s=policy.lease_s,
        waited_s=0.0,
        hops=attempt.job.hops + 1,
        deadline_s=taken.deadline_s,
        account=attempt.job.account,
        alone=False,
        key_state=taken.key_state,
    )
