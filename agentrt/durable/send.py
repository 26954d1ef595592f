"""Messages of an attempt: each is a step, so it is sent once however often the attempt is repeated."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentrt.context import Attempt, Begun
from agentrt.durable.budget import exceed, questions_of
from agentrt.errors import BudgetExceeded, TooManyHops
from agentrt.limits import hops_max
from agentrt.model import NewJob, Sent, StepKind, StepState

if TYPE_CHECKING:
    from agentrt.client import Client


async def send_as_steps(
    attempt: Attempt, jobs: Sequence[NewJob], client: Client, connection: Any
) -> list[tuple[Begun, StepState]]:
    """Send those that this attempt, or one before it, has not sent yet. The state's `child` is the job of each."""
    begun = [_begin(attempt, job) for job in jobs]
    if attempt.job.hops >= hops_max and (beyond := [one for one in begun if one.known is None]):
        raise await _too_many_hops(attempt, beyond[0].mark.id)
    fresh = [job for job, one in zip(jobs, begun, strict=True) if one.known is None]
    sent = iter(await _send(attempt, fresh, client, connection, begun[0].mark.id))
    return [
        (one, one.known if one.known is not None else _state(job, next(sent).id))
        for job, one in zip(jobs, begun, strict=True)
    ]


def _begin(attempt: Attempt, job: NewJob) -> Begun:
    verb: StepKind = "ask" if job.asks else "send"
    begun = attempt.begin(verb, f"{verb}:{job.agent}", (job.agent, job.key, job.payload))
    job.step = begun.mark
    return begun


async def _too_many_hops(attempt: Attempt, step_id: str) -> TooManyHops:
    """The refusal, with the way that led here: its ends, for a hundred names are no text."""
    way = [f"{agent} ({job_id})" for job_id, agent in await attempt.store.way_to(attempt.job.id)]
    shown = way if len(way) <= 10 else [*way[:4], "…", *way[-5:]]
    return TooManyHops(
        f"{step_id}: the message would be {attempt.job.hops + 1} hops from the first of its tree, at most {hops_max} are allowed:"
        f" {' → '.join(shown)}. 'agentrt trace {attempt.job.root}' shows all of it."
    )


async def _send(attempt: Attempt, jobs: Sequence[NewJob], client: Client, connection: Any, first: str) -> Sequence[Any]:
    questions = questions_of(first)
    while jobs:
        try:
            if len(jobs) == 1 and connection is None:
                return [await _send_one(attempt, jobs[0], client)]
            return await client.send(jobs, connection=connection, sender=attempt.owner)
        except BudgetExceeded as error:
            if connection is not None:  # its transaction is aborted by now
                raise
            await exceed(attempt, str(error), questions)
    return ()


async def _send_one(attempt: Attempt, job: NewJob, client: Client) -> Sent:
    """A message to an agent that this process runs, and has a slot for, is handed over by the statement that stores it."""
    hand_over = attempt.hand_over
    later = job.delay_s > 0 or job.run_at is not None
    wanted = None if hand_over is None or later else hand_over.offer(job.agent)
    if hand_over is None or wanted is None:
        (sent,) = await client.send([job], sender=attempt.owner)
        return sent
    return await hand_over.hand(wanted, attempt, job)


def _state(job: NewJob, child: int) -> StepState:
    due = None if job.timeout_s is None else time.monotonic() + job.timeout_s
    return StepState("ask" if job.asks else "send", done=not job.asks, child=child, due=due)
