"""The runner: one task a job. It calls the agent under its lease and decides how the attempt ended."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import structlog

from agentrt import codec
from agentrt.agent import Agent
from agentrt.client import Client
from agentrt.config import Settings, about, redact
from agentrt.context import Attempt, HandOver, running, through_outages
from agentrt.durable import fault
from agentrt.durable.key_state import changed_state
from agentrt.engine.committer import Committer
from agentrt.engine.heart import Heart
from agentrt.engine.slots import Slots
from agentrt.errors import (
    AskCycle,
    BudgetExceeded,
    Fail,
    JobCancelled,
    LeaseLost,
    PayloadInvalid,
    RetryAfter,
    TooManyHops,
)
from agentrt.limits import delay_s_max, retry_after_s_min
from agentrt.model import Claimed, Failure, Finish, Outcome, Park, Reschedule, State
from agentrt.store import Store

log = structlog.get_logger("agentrt.runner")
same_moment_s = 0.5  # one moment of the database, as two processes come to know it


class Runner:
    """The running attempts of this process and the slots they hold. A slot is free again when the outcome is stored."""

    def __init__(
        self,
        agents: Mapping[str, Agent[..., Any]],
        settings: Settings,
        store: Store,
        client: Client,
        committer: Committer,
        heart: Heart,
        group: asyncio.TaskGroup,
    ) -> None:
        self.agents = agents
        self.attempts: dict[int, Attempt] = {}
        self.runs_alone = False  # a job that must not run beside others of its kind (see claim)
        self.on_alone_ended: Callable[[], None] = lambda: None
        self.on_idle: Callable[[], None] = lambda: None
        self.on_unheard: Callable[[int], None] = lambda _job_id: None
        self.slots = Slots(settings.slots, [agent.policy(settings.lease_s) for agent in agents.values()])
        self._settings = settings
        self._store = store
        self._client = client
        self._committer = committer
        self._heart = heart
        self._group = group
        self._context = contextvars.copy_context()
        self._log = log.bind()  # bound once: the module's would look up its configuration for each line
        self._tells_all = self._log.is_enabled_for(logging.INFO)
        self.hand_over: HandOver | None = None

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run something in the context of the process: that of the attempt that asks for it belongs to another job."""
        return self._group.create_task(work, name=name, context=self._context.copy())

    def start(self, jobs: Sequence[Claimed], granted_at: float, cause: str) -> None:
        """Run claimed jobs."""
        for agent, count in Counter([job.agent for job in jobs]).items():
            self.slots.change(agent, count)
        for job in jobs:
            self._start(job, granted_at, cause)

    def _start(self, job: Claimed, granted_at: float, cause: str) -> None:
        attempt = Attempt(
            job,
            self._store,
            self._client,
            0.0 if job.limited else self._settings.warm_s,  # in memory it would count against its agent's limit
            self._settings.step_bytes_max,
            lease_expires=granted_at + job.lease_s,
        )
        attempt.on_wait = self.slots.change
        attempt.hand_over = self.hand_over
        attempt.on_unheard = self.on_unheard
        self.attempts[job.id] = attempt
        self.runs_alone = self.runs_alone or job.alone
        self._heart.watch(attempt)
        if self._tells_all:
            self._log.info("job.claimed", **about(job), cause=cause, waited_s=round(job.waited_s, 4))
        self.spawn(self._run(attempt), f"job-{job.id}")

    def stored(self, attempts: Sequence[Attempt]) -> None:
        """The outcomes of these attempts are in the database, or were refused by it: their slots are free."""
        for attempt in attempts:
            attempt.end()
            self._heart.forget(attempt)
            job = attempt.job
            if self.attempts.get(job.id) is attempt:
                del self.attempts[job.id]
            if job.alone:
                self.runs_alone = False
                self.on_alone_ended()
        for agent, count in Counter([attempt.job.agent for attempt in attempts]).items():
            self.slots.change(agent, -count)
        if not self.attempts:
            self.on_idle()

    async def _run(self, attempt: Attempt) -> None:
        job = attempt.job
        agent = self.agents[job.agent]
        attempt.task = asyncio.current_task()
        running.set(attempt)
        started = time.monotonic()
        timers = None
        if agent.timeout_s is not None or agent.budget is not None or job.deadline_s is not None:
            timers = _Timers(attempt)
        outcome: Outcome | None
        try:
            if (
                started >= attempt.lease_expires
            ):  # the loop was blocked since the claim; the job may run elsewhere by now
                raise LeaseLost("its lease ran out before it could be started")
            attempt.require_going()
            if timers is not None:
                await self._apply_limits(attempt, agent, timers)
            outcome = await self._call(attempt, agent)
        except BaseException as error:
            if isinstance(error, JobCancelled) and timers is not None:
                timers.bring_forward("deadline")
            told = attempt.stop_reason not in (
                None,
                "timeout",
            )  # then it is not asked for its words: there may be thousands
            outcome = None if told else self._outcome_of(attempt, agent, error)
        if timers is not None:
            timers.cancel()
        attempt.settled = True
        for left in attempt.tasks:  # what the agent began and did not wait for ends with it
            left.cancel()
        if attempt.stop_reason is not None:
            outcome = self._stopped(attempt, agent, outcome)
        self._committer.put(attempt, outcome, time.monotonic() - started)

    @staticmethod
    async def _apply_limits(attempt: Attempt, agent: Agent[..., Any], timers: _Timers) -> None:
        """Open the job's budget on its first attempt. Stop it after its time, and at its deadline: at once when that is past."""
        job = attempt.job
        deadline_s = job.deadline_s
        if agent.timeout_s is not None:
            timers.add(agent.timeout_s, "timeout", f"it ran longer than {agent.timeout_s:g} s")
        if agent.budget is not None and job.account != job.id:
            budget = agent.budget
            job.account, deadline_s = await through_outages(lambda: attempt.store.open_budget(attempt.owner, budget))
        if deadline_s is not None:
            timers.add(deadline_s, "deadline", "the deadline that it, or a job above it, was given has passed")
            attempt.require_going()

    async def _call(self, attempt: Attempt, agent: Agent[..., Any]) -> Outcome:
        job = attempt.job
        try:
            arguments = agent.decode_arguments(job.payload)
        except PayloadInvalid as error:
            failure = Failure("invalid", "PayloadInvalid", codec.storable_text(redact(str(error))))
            return Finish(job.id, job.fence, State.failed, failure=failure)
        value = await agent.run(**arguments)
        try:
            result = agent.encode_result(value)
            key_state = changed_state(attempt)
        except PayloadInvalid as error:
            failure = Failure("unstorable", type(error).__name__, codec.storable_text(redact(str(error))))
            return Finish(job.id, job.fence, State.failed, codec.marked(value).decode(), failure)
        return Finish(job.id, job.fence, State.succeeded, result, key_state=key_state)

    def _outcome_of(self, attempt: Attempt, agent: Agent[..., Any], error: BaseException) -> Outcome | None:
        """As `_raised`, with a net: the exception is user code, and no property of it may cost more than this job."""
        try:
            return self._raised(attempt, agent, error)
        except BaseException:
            name = codec.storable_text(type(error).__name__, 200)
            return self._again(attempt, agent, Failure("error", name, "<its record could not be made>"))

    def _raised(self, attempt: Attempt, agent: Agent[..., Any], error: BaseException) -> Outcome | None:
        """What an exception out of the agent means. None: the job is no longer ours, nothing may be written."""
        job = attempt.job
        if isinstance(error, LeaseLost):
            attempt.stop_reason = attempt.stop_reason or "lost"
            attempt.stop_text = attempt.stop_text or str(error)
            return None
        steps = fault.steps_of(error)
        reopen = tuple(steps)
        if isinstance(error, RetryAfter):
            failure = Failure("later", "RetryAfter", fault.text_of(error))
            delay_s = min(max(error.seconds, retry_after_s_min), delay_s_max)
            return Reschedule(job.id, job.fence, delay_s, False, failure, self._loose(agent), reopen)
        reason = next((word for kind, word in _fatal.items() if isinstance(error, kind)), None)
        if reason is not None or any(steps.values()):
            failure = _failure(reason or "error", error)
            return Finish(job.id, job.fence, State.failed, failure=failure, reopen=reopen)
        return self._again(attempt, agent, _failure("error", error), reopen)

    def _again(
        self, attempt: Attempt, agent: Agent[..., Any], failure: Failure, reopen: tuple[str, ...] = ()
    ) -> Outcome:
        """A failed attempt: retried after its delay, or the last one."""
        job = attempt.job
        if job.attempt >= job.max_attempts:
            return Finish(job.id, job.fence, State.failed, failure=failure, reopen=reopen)
        delay_s = agent.retry.delay_s(job.attempt)
        return Reschedule(job.id, job.fence, delay_s, True, failure, self._loose(agent), reopen)

    def _stopped(self, attempt: Attempt, agent: Agent[..., Any], outcome: Outcome | None) -> Outcome | None:
        """The runtime stopped the attempt: the reason decides, whatever the agent made of its cancellation."""
        job = attempt.job
        text = codec.storable_text(attempt.stop_text)
        match attempt.stop_reason:
            case "cancelled" | "deadline" as reason:
                kind = "Cancelled" if reason == "cancelled" else "DeadlinePassed"
                return Finish(job.id, job.fence, State.cancelled, failure=Failure(reason, kind, text))
            case "diverged":
                return Finish(
                    job.id, job.fence, State.failed, failure=Failure("diverged", "Diverged", text), counts=False
                )
            case "timeout":
                trace = (
                    ""
                    if outcome is None or isinstance(outcome, Park) or outcome.failure is None
                    else outcome.failure.traceback
                )
                return self._again(attempt, agent, Failure("timeout", "Timeout", text, trace))
            case "shutdown":
                return Reschedule(job.id, job.fence, 0.0, False)
            case "parked":
                due, waits = attempt.parked
                return Park(job.id, job.fence, None if due is None else max(0.0, due - time.monotonic()), waits)
        return None

    @staticmethod
    def _loose(agent: Agent[..., Any]) -> bool:
        return agent.order == "loose"


class _Timers:
    """What will stop an attempt by the clock."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._timers: dict[str, tuple[asyncio.TimerHandle, str]] = {}  # by reason, with the text

    def add(self, seconds: float, reason: str, text: str) -> None:
        if seconds <= 0:
            self._attempt.stop(reason, text)
            return
        handle = asyncio.get_running_loop().call_later(seconds, self._attempt.stop, reason, text)
        self._timers[reason] = handle, text

    def bring_forward(self, reason: str) -> None:
        """One that is as good as due counts as due: a job that was asked has the same deadline, and may have met it first."""
        if reason in self._timers:
            handle, text = self._timers[reason]
            if handle.when() - asyncio.get_running_loop().time() <= same_moment_s:
                self._attempt.stop(reason, text)

    def cancel(self) -> None:
        for handle, _ in self._timers.values():
            handle.cancel()


# Failures that a repetition would only meet again, and the word for each.
_fatal: dict[type[BaseException], str] = {
    Fail: "fatal",
    BudgetExceeded: "budget",
    AskCycle: "cycle",
    TooManyHops: "hops",
}


def _failure(reason: str, error: BaseException) -> Failure:
    """What is kept of an exception, whatever it does when it is asked for its text or its traceback."""
    return Failure(reason, fault.class_path(type(error)), fault.text_of(error), fault.traceback_of(error))
