"""The runner: one task a job. It calls the agent under its lease and decides how the attempt ended."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from agentrt import codec
from agentrt.agent import Agent
from agentrt.client import Client
from agentrt.config import Settings, redact
from agentrt.context import Attempt, call, running
from agentrt.engine.committer import Committer
from agentrt.engine.heart import Heart
from agentrt.errors import Fail, LeaseLost, PayloadInvalid, RetryAfter
from agentrt.model import (
    AgentPolicy,
    Claimed,
    Failure,
    Finish,
    Outcome,
    Reschedule,
    State,
    delay_s_max,
    retry_after_s_min,
    traceback_chars_max,
)
from agentrt.store import Store

log = structlog.get_logger("agentrt.runner")


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
        self.was_full = False
        self.runs_alone = False  # a job that must not run beside others of its kind (see claim)
        self.on_alone_ended: Callable[[], None] = lambda: None
        self.on_free: Callable[[str], None] = lambda _agent: None
        self.on_idle: Callable[[], None] = lambda: None
        self._policies = [agent.policy(settings.lease_s) for agent in agents.values()]
        self._settings = settings
        self._store = store
        self._client = client
        self._committer = committer
        self._heart = heart
        self._group = group
        self._held: Counter[str] = Counter()
        self._in_use = 0

    def free(self) -> tuple[list[tuple[AgentPolicy, int]], int]:
        """For which agents how many jobs may be claimed, and how many in all."""
        total = self._settings.slots - self._in_use
        self.was_full = total <= 0
        if total <= 0:
            return [], 0
        wanted = []
        for policy in self._policies:
            room = total if policy.concurrency is None else min(total, policy.concurrency - self._held[policy.name])
            if room > 0:
                wanted.append((policy, room))
        return wanted, total

    def start(self, job: Claimed, granted_at: float, cause: str) -> None:
        """Run a claimed job."""
        attempt = Attempt(job, self._store, self._client, lease_expires=granted_at + job.lease_s)
        attempt.on_wait = lambda change: self._change_slots(job.agent, change)
        self.attempts[job.id] = attempt
        self._change_slots(job.agent, +1)
        self.runs_alone = self.runs_alone or job.alone
        self._heart.watch(attempt)
        log.info(
            "job.claimed",
            job_id=job.id,
            agent=job.agent,
            attempt=job.attempt,
            key=job.key,
            cause=cause,
            waited_s=round(job.waited_s, 4),
        )
        attempt.task = self._group.create_task(self._run(attempt), name=f"job-{job.id}")

    def stored(self, attempt: Attempt) -> None:
        """The attempt's outcome is in the database, or was refused by it: its slot is free."""
        self._heart.forget(attempt)
        if self.attempts.get(attempt.job.id) is attempt:
            del self.attempts[attempt.job.id]
        if attempt.job.alone:
            self.runs_alone = False
            self.on_alone_ended()
        self._change_slots(attempt.job.agent, -1)
        if not self.attempts:
            self.on_idle()

    def _change_slots(self, agent: str, change: int) -> None:
        self._held[agent] += change
        self._in_use += change
        if change < 0:
            self.on_free(agent)

    async def _run(self, attempt: Attempt) -> None:
        job = attempt.job
        agent = self.agents[job.agent]
        running.set(attempt)
        structlog.contextvars.bind_contextvars(job_id=job.id, agent=job.agent, attempt=job.attempt, key=job.key)
        started = time.monotonic()
        timer = None
        if agent.timeout_s is not None:
            text = f"it ran longer than {agent.timeout_s:g} s"
            timer = asyncio.get_running_loop().call_later(agent.timeout_s, attempt.stop, "timeout", text)
        outcome: Outcome | None
        try:
            if (
                started >= attempt.lease_expires
            ):  # the loop was blocked since the claim; the job may run elsewhere by now
                raise LeaseLost("its lease ran out before it could be started")
            outcome = await self._call(attempt, agent)
        except BaseException as error:
            outcome = self._outcome_of(attempt, agent, error)
        if timer is not None:
            timer.cancel()
        attempt.settled = True
        if attempt.stop_reason is not None:
            outcome = self._stopped(attempt, agent, outcome)
        self._committer.put(attempt, outcome, time.monotonic() - started)

    async def _call(self, attempt: Attempt, agent: Agent[..., Any]) -> Outcome:
        job = attempt.job
        try:
            arguments = agent.decode_arguments(job.payload)
        except PayloadInvalid as error:
            failure = Failure("invalid", "PayloadInvalid", codec.storable_text(redact(str(error))))
            return Finish(job.id, job.fence, State.failed, failure=failure)
        value = await call(agent.fn, **arguments)
        try:
            result = agent.encode_result(value)
        except PayloadInvalid as error:
            failure = Failure("unstorable", type(error).__name__, codec.storable_text(redact(str(error))))
            return Finish(job.id, job.fence, State.failed, codec.marked(value).decode(), failure)
        return Finish(job.id, job.fence, State.succeeded, result)

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
        if isinstance(error, RetryAfter):
            failure = Failure("later", "RetryAfter", _text_of(error))
            delay_s = min(max(error.seconds, retry_after_s_min), delay_s_max)
            return Reschedule(job.id, job.fence, delay_s, False, failure, self._loose(agent))
        if isinstance(error, Fail):
            return Finish(job.id, job.fence, State.failed, failure=_failure("fatal", error))
        return self._again(attempt, agent, _failure("error", error))

    def _again(self, attempt: Attempt, agent: Agent[..., Any], failure: Failure) -> Outcome:
        """A failed attempt: retried after its delay, or the last one."""
        job = attempt.job
        if job.attempt >= job.max_attempts:
            return Finish(job.id, job.fence, State.failed, failure=failure)
        return Reschedule(job.id, job.fence, agent.retry.delay_s(job.attempt), True, failure, self._loose(agent))

    def _stopped(self, attempt: Attempt, agent: Agent[..., Any], outcome: Outcome | None) -> Outcome | None:
        """The runtime stopped the attempt: the reason decides, whatever the agent made of its cancellation."""
        job = attempt.job
        if attempt.stop_reason == "cancelled":
            failure = Failure("cancelled", "Cancelled", codec.storable_text(attempt.stop_text))
            return Finish(job.id, job.fence, State.cancelled, failure=failure)
        if attempt.stop_reason == "timeout":
            trace = outcome.failure.traceback if outcome is not None and outcome.failure is not None else ""
            return self._again(attempt, agent, Failure("timeout", "Timeout", attempt.stop_text, trace))
        if attempt.stop_reason == "shutdown":
            return Reschedule(job.id, job.fence, 0.0, False)
        return None

    @staticmethod
    def _loose(agent: Agent[..., Any]) -> bool:
        return agent.order == "loose"


def _failure(reason: str, error: BaseException) -> Failure:
    """What is kept of an exception, whatever it does when it is asked for its text or its traceback."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        trace = "".join(traceback.format_exception(error))
    except BaseException:
        trace = "".join(traceback.format_tb(error.__traceback__))
    return Failure(
        reason, codec.storable_text(name, 200), _text_of(error), codec.storable_text(redact(trace), traceback_chars_max)
    )


def _text_of(error: BaseException) -> str:
    try:
        return codec.storable_text(redact(str(error)))
    except BaseException:
        return "<its text cannot be read>"
