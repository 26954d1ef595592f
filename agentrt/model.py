"""The values that travel between the floors: states, retry policy, budgets, jobs and steps on their way in and out.

Knows no database and no event loop. What is made for each job, message or step is not frozen: that takes three times as long.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, Literal
from uuid import UUID

from agentrt.errors import UsageError
from agentrt.limits import attempts_max, delay_s_max, hops_max, require_whole, require_within


class State(StrEnum):
    """Where a job stands. The first five are unfinished and live in `jobs`; the rest are final and live in `history`."""

    scheduled = "scheduled"
    ready = "ready"
    blocked = "blocked"
    running = "running"
    parked = "parked"
    succeeded = "succeeded"
    failed = "failed"
    cancelled = "cancelled"

    @property
    def final(self) -> bool:
        return self in (State.succeeded, State.failed, State.cancelled)


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how far apart an agent's attempts are.

    The delay before attempt n+1 is `base_s * factor ** (n - 1)`, at most `cap_s`, and then a random share of up to
    `jitter` is taken off, so that jobs that failed together do not come back together.
    """

    max_attempts: int = 5
    base_s: float = 2.0
    factor: float = 2.0
    cap_s: float = 3_600.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        require_whole("max_attempts", self.max_attempts, 1, attempts_max)
        require_within("base_s", self.base_s, 0, delay_s_max)
        require_within("factor", self.factor, 1, 1_000)
        require_within("cap_s", self.cap_s, 0, delay_s_max)
        require_within("jitter", self.jitter, 0, 1)

    def delay_s(self, attempt: int) -> float:
        """The wait after `attempt` (counted from 1) failed. Capped before the power can overflow."""
        if self.base_s <= 0 or self.cap_s <= 0:
            return 0.0
        doublings_to_cap = math.log(self.cap_s / self.base_s, self.factor) if self.factor > 1 else math.inf
        exponent = max(0, attempt - 1)
        full = self.cap_s if exponent >= doublings_to_cap else self.base_s * self.factor**exponent
        return min(full, self.cap_s) * (1 - self.jitter * random.random())  # noqa: S311 - spreads load, guards nothing


Order = Literal["strict", "loose"]


@dataclass(frozen=True, slots=True)
class AgentPolicy:
    """What the store must know of an agent to claim for it."""

    name: str
    concurrency: int | None
    limit: int | None
    max_attempts: int
    lease_s: float


@dataclass(slots=True)
class NewJob:
    """A message on its way in: encoded, checked, not yet stored."""

    agent: str
    payload: bytes
    key: str | None = None
    priority: int = 5
    delay_s: float = 0.0
    run_at: datetime | None = None
    max_attempts: int | None = None
    dedup: str | None = None
    deadline_s: float | None = None
    watched: bool = False  # somebody outside waits for its end
    step: StepMark | None = None  # the step of the sender that this is
    asks: bool = False  # that step waits for its end, at most `timeout_s`
    timeout_s: float | None = None


@dataclass(slots=True)
class Sent:
    """The answer to a send. `existed`: the dedup key had a job already, and this is its id."""

    id: int
    existed: bool = False
    taken: Taken | None = None


@dataclass(slots=True)
class Taken:
    """The message was handed over: its sender's process has the lease, and runs it."""

    key_state: str | None
    deadline_s: float | None
    leased_s: float  # when its lease began, from the beginning of the statement: it may have waited for the mailbox


StepKind = Literal["step", "send", "ask", "sleep", "decide"]


@dataclass(slots=True)
class StepMark:
    """What tells a step of a job from all others, and a replay of it from another call that took its place."""

    id: str
    fingerprint: str | None = None  # of its arguments
    place: str | None = None  # file:line of the call


@dataclass(slots=True)
class StepRecord:
    """A step on its way in: its outcome (done), or what it waits for."""

    mark: StepMark
    kind: StepKind = "step"
    done: bool = True
    output: str | None = None  # JSON
    failure: str | None = None  # JSON, see durable.fault
    wait_s: float | None = None
    tries: int = 0
    usd: Decimal | None = None
    tokens: int | None = None
    covered_usd: Decimal = Decimal(0)  # how much of both was reserved, and so is booked already
    covered_tokens: int = 0


@dataclass(slots=True)
class StepState:
    """A step as it is stored. Not done: it waits for `child`, for a decision, or for `due`."""

    kind: StepKind
    done: bool
    output: str | None = None
    failure: str | None = None
    due: float | None = None  # on the monotonic clock of this process
    tries: int = 0
    child: int | None = None
    mark: StepMark | None = None
    exceeded: str | None = None  # the budget that recording it used up, as JSON


@dataclass(slots=True)
class Sender:
    """The attempt that sends: its messages are steps, stored once and only while it owns its job."""

    job_id: int
    fence: int
    account: int | None = None  # the budget that pays for it
    takes: Wanted | None = None  # its process would run the one message that it sends


@dataclass(frozen=True, slots=True)
class NewQuestion:
    """A question for people on its way in."""

    text: str
    options: tuple[str, ...]
    who: tuple[str, ...] | None = None
    default: str | None = None
    within_s: float | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """What a job and all that follows from it may use. None: no limit of that kind.

    Args:
        usd: money, as reported with `agentrt.spend` and `agentrt.reserve`.
        tokens: likewise.
        jobs: how many jobs, itself included.
        hops: how far down the tree messages may go.
        wall_s: seconds from the start of its first attempt; then it and all below it are cancelled.
        on_exceeded: 'fail' ends the job that went beyond; 'decide' asks a person whether to grant as much again.
    """

    usd: float | None = None
    tokens: int | None = None
    jobs: int | None = None
    hops: int | None = None
    wall_s: float | None = None
    on_exceeded: Literal["fail", "decide"] = "fail"

    def __post_init__(self) -> None:
        for name, value, most in (("usd", self.usd, 1e12), ("wall_s", self.wall_s, delay_s_max)):
            if value is not None:
                require_within(name, value, 0, most)
        for name, count, most in (
            ("tokens", self.tokens, 10**15),
            ("jobs", self.jobs, 10**9),
            ("hops", self.hops, hops_max),
        ):
            if count is not None:
                require_whole(name, count, 0, most)
        if self.on_exceeded not in ("fail", "decide"):
            raise UsageError(f"on_exceeded is {self.on_exceeded!r}; it must be 'fail' or 'decide'.")


@dataclass(slots=True)
class Claimed:
    """A job as the claim hands it out, with the right to run it until the lease ends."""

    id: int
    fence: int
    agent: str
    key: str | None
    attempt: int
    max_attempts: int
    payload: str
    priority: int
    ord: int
    root: int
    hops: int
    deadline_s: float | None  # seconds left when it was claimed
    account: int | None  # the budget that pays for it
    alone: bool  # its process died twice: no other such job runs beside it
    lease_s: float
    waited_s: float
    key_state: str | None = None  # what its key keeps, JSON
    steps: dict[str, StepState] = field(default_factory=dict)
    limited: bool = False  # its agent has a limit over all processes


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a claim asks for: of each agent at most so many, and how many in all."""

    supervisor: UUID
    agents: tuple[tuple[AgentPolicy, int], ...]
    total: int
    alone: bool = True  # whether one that must run alone may be among them
    floors: tuple[int, ...] | None = None  # by agent and priority: jobs of a smaller `ord` are known to be gone


@dataclass(slots=True)
class Failure:
    """What is kept of a failed attempt: class, text and traceback as text, a reason in one word."""

    reason: str
    kind: str
    text: str
    traceback: str = ""

    @property
    def line(self) -> str:
        return f"{self.kind}: {self.text}" if self.text else self.kind


@dataclass(slots=True)
class Finish:
    """The final outcome of an attempt; moves the job to history."""

    id: int
    fence: int
    state: State
    result: str | None = None
    failure: Failure | None = None
    counts: bool = True  # whether the attempt is used up
    key_state: str | None = None  # saved with the end
    reopen: tuple[str, ...] = ()  # steps whose recorded failure ended the attempt


@dataclass(slots=True)
class Reschedule:
    """An outcome that gives the job back. `counts`: whether the attempt is used up."""

    id: int
    fence: int
    delay_s: float
    counts: bool
    failure: Failure | None = None
    loose: bool = False
    reopen: tuple[str, ...] = ()


@dataclass(slots=True)
class Park:
    """An outcome that puts a waiting job to sleep until one of `waits` is answered, or `wait_s` has passed."""

    id: int
    fence: int
    wait_s: float | None
    waits: tuple[str, ...]


Outcome = Finish | Reschedule | Park


@dataclass(frozen=True, slots=True)
class Result:
    """How a job ended, as a waiter reads it."""

    id: int
    agent: str
    state: State
    result: str | None
    reason: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What one sweep did, and when the next is worth its while."""

    made_ready: list[int]
    ended: list[int]
    next_s: float | None


@dataclass(frozen=True, slots=True)
class Beat:
    """What a supervisor's beat saw. `unknown`: agents that are not its own, by how many ready jobs they have."""

    ready: bool
    unknown: dict[str, int]
    unrung: bool  # nobody rang it until this beat: it was unknown, or had been silent for too long
    ahead: int = 0  # supervisors that listen for the same agents and began before it


JobRow = dict[str, Any]  # one row of the view `all_jobs`, as the command line shows it
