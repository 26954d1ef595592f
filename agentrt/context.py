"""What surrounds a running agent: its job, its attempt with steps and waits, and how functions are called.

A context variable carries the attempt, so an agent called directly (a unit test) has none, and `step` then just calls.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from agentrt import codec
from agentrt.calls import call
from agentrt.config import here, redact
from agentrt.durable.branch import Branch, Branches
from agentrt.errors import StoreUnavailable, UsageError
from agentrt.limits import payload_bytes_max
from agentrt.model import Claimed, NewJob, Retry, Sender, Sent, StepKind, StepMark, StepRecord, StepState, Wanted
from agentrt.store import Store

if TYPE_CHECKING:
    from agentrt.client import Client

R = TypeVar("R")

outage = Retry(base_s=0.05, factor=2, cap_s=1, jitter=0.5)
_own_folders = tuple(str(Path(__file__).parent / name) for name in ("durable", "agent.py", "context.py", "client.py"))


@dataclass(frozen=True, slots=True)
class Current:
    """The job that this code runs for."""

    job_id: int
    agent: str
    key: str | None
    attempt: int  # counted from 1
    max_attempts: int
    root: int  # the job that began the conversation


@dataclass(slots=True)
class Wait:
    """A step that an attempt waits for: its answer, and when the waiting ends by itself."""

    answer: asyncio.Future[StepState]
    due: float | None
    timer: asyncio.Timeout | None = None


@dataclass(slots=True)
class Begun:
    """A step that the agent has come to: what tells it from others, and what is stored of it."""

    mark: StepMark
    known: StepState | None


class HandOver(Protocol):
    """The process of an attempt, which may run what the attempt sends without a claim in between."""

    def offer(self, agent: str) -> Wanted | None:
        """Set a slot aside for a message to this agent while it is sent; None: it is not run here, or there is no room."""

    async def hand(self, wanted: Wanted, attempt: Attempt, job: NewJob) -> Sent:
        """Send into the slot that was set aside, through outages, and start what was handed over.

        A caller that is cancelled meanwhile does not end it: what has been stored in our name runs nowhere else.
        """


@dataclass(slots=True, eq=False)
class Attempt:
    """One run of a job under one lease."""

    job: Claimed
    store: Store
    client: Client
    warm_s: float = 60.0
    value_bytes_max: int = payload_bytes_max
    waits: dict[str, Wait] = field(default_factory=dict)
    stop_reason: str | None = None  # cancelled, timeout, deadline, lost, shutdown, parked or diverged
    stop_text: str = ""
    lease_expires: float = 0.0  # on the monotonic clock, never later than the database thinks; moved on by the heart
    renew_at: float = 0.0  # on the same clock: when the heart is to renew it
    settled: bool = False  # its outcome is decided; a stop comes too late
    task: asyncio.Task[None] | None = None  # while its coroutine runs
    parked: tuple[float | None, tuple[str, ...]] = (None, ())  # the waits when it was stopped to be parked
    key_state: Any = None  # see durable.key_state
    # Gives the agent's slot back (-1) and takes it again (+1).
    on_wait: Callable[[str, int], None] = lambda _agent, _change: None
    hand_over: HandOver | None = None
    # Has the job's answers looked for: a hint may have come before the wait.
    on_unheard: Callable[[int], None] = lambda _job_id: None
    hints: int = 0  # how often it was told of answers
    _branches: Branches | None = None
    _hints_at_begin: dict[str, int] = field(default_factory=dict)
    _steps_running: int = 0
    _shields: int = 0
    _slotless: bool = False
    _park_timer: asyncio.TimerHandle | None = None

    @property
    def owner(self) -> Sender:
        """The job, its fence, and who pays for it."""
        return Sender(self.job.id, self.job.fence, self.job.account)

    @property
    def branches(self) -> Branches:
        """Made when they are asked for: most jobs neither make tasks nor come to a step."""
        if self._branches is None:
            self._branches = Branches(self.task)
        return self._branches

    @property
    def tasks(self) -> Sequence[asyncio.Task[Any]]:
        """Those that the agent made and that have not ended."""
        return () if self._branches is None else self._branches.tasks

    # -------------------------------------------------------------- the end

    def stop(self, reason: str, text: str = "") -> None:
        """Cancel the coroutine, once and for one reason; the first one counts. A shield holds it off, but for a lost lease.
        One that has not begun is not cancelled, which would leave nobody to say so: it looks for the reason first."""
        if self.stop_reason is None and not self.settled:
            self.stop_reason = reason
            self.stop_text = text
            if self.task is not None and (not self._shields or reason == "lost"):
                self.task.cancel()

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """While inside, a stop waits; steps and messages go on."""
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1
            if not self._shields and self.stop_reason is not None and self.task is not None and not self.settled:
                self.task.cancel()
            elif not self._shields and self._slotless:
                asyncio.get_running_loop().call_later(self.warm_s, self._park)  # it could not while this was open

    def end(self) -> None:
        """Let go of the task: its context holds this attempt, and the two would keep each other until a collector comes."""
        self.task = None
        if self._branches is not None:
            self._branches.end()

    def require_going(self) -> None:
        """Nothing durable begins once the attempt is told to stop: a caught cancellation does not bring it back."""
        if self.settled or self.stop_reason == "lost" or (self.stop_reason is not None and not self._shields):
            raise asyncio.CancelledError(self.stop_reason or "the job has ended")

    # -------------------------------------------------------------- steps

    def begin(self, kind: StepKind, name: str, subject: object = None) -> Begun:
        """Come to a step. `subject`: what a replay must call it with again.

        One that was recorded for something else stops the attempt as diverged: the code no longer does what was recorded.
        """
        self.require_going()
        step_id = self.branches.here().step_id(name)
        mark = StepMark(step_id, None if subject is None else codec.fingerprint(subject), _place())
        known = self.job.steps.get(step_id)
        if known is not None and known.mark is not None:
            same = known.mark.fingerprint in (None, mark.fingerprint)
            if known.kind != kind or not same:
                self.diverge(mark.id, *_difference(kind, mark, subject, known))
                raise asyncio.CancelledError("diverged")
        if kind in ("ask", "decide"):
            self._hints_at_begin[step_id] = self.hints if known is None else -1  # what came with the claim is older
        return Begun(mark, known)

    def diverge(self, step_id: str, recorded: str, found: str) -> None:
        """The code does something else than what is recorded: the attempt ends, and costs nothing."""
        remedy = f"agentrt retry {self.job.id} --from {shlex.quote(step_id)}"
        self.stop("diverged", f"step {step_id} {recorded}; {found}. Put the code right, or forget the step: {remedy}")

    async def perform(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call the function of a step that has no outcome yet."""
        return await call(fn, *args)

    async def record(self, record: StepRecord) -> StepState:
        """Store a step; returns what counts. Goes on through outages: the lease bounds it.

        Raises `LeaseLost` when the job has moved on.
        """
        return await through_outages(lambda: self.store.record(self.owner, record))

    @contextmanager
    def working(self, step_id: str) -> Iterator[None]:
        """Inside a step: steps that it calls have ids below its own, and the attempt holds its slot."""
        self._steps_running += 1
        self._weigh()
        try:
            with self.branches.inside(Branch(f"{step_id}/")):
                yield
        finally:
            self._steps_running -= 1
            self._weigh()

    # -------------------------------------------------------------- waits

    async def until(self, step_id: str, due: float | None) -> StepState | None:
        """Wait for a step's answer, holding no slot; None: `due` (on the monotonic clock) has come first."""
        if due is not None and due <= time.monotonic():
            return None  # not a wait that could be parked: the job would be ready at once, and never come further
        wait = Wait(asyncio.get_running_loop().create_future(), due)
        self.waits[step_id] = wait
        self._weigh()
        if self._hints_at_begin.pop(step_id, self.hints) != self.hints:
            self.on_unheard(self.job.id)
        try:
            async with asyncio.timeout(None if due is None else max(0.0, due - time.monotonic())) as wait.timer:
                return await wait.answer
        except TimeoutError:
            return None
        finally:
            if self.waits.get(step_id) is wait:
                del self.waits[step_id]
            self._weigh()

    def clock_moved(self, seconds: float) -> None:
        """The database's time was set ahead (by a test): what waits for a moment of it is that much nearer."""
        for wait in self.waits.values():
            if wait.due is not None and wait.timer is not None and not wait.timer.expired():
                wait.due -= seconds
                left_s = max(0.0, wait.due - time.monotonic())
                wait.timer.reschedule(asyncio.get_running_loop().time() + left_s)

    def answered(self, step_id: str, state: StepState) -> None:
        """The step has its outcome."""
        wait = self.waits.get(step_id)
        if wait is not None and not wait.answer.done():
            wait.answer.set_result(state)

    def _weigh(self) -> None:
        """An attempt that only waits holds no slot, and after `warm_s` no memory either."""
        quiet = bool(self.waits) and not self._steps_running
        if quiet == self._slotless:
            return
        self._slotless = quiet
        self.on_wait(self.job.agent, -1 if quiet else +1)
        if quiet:
            self._park_timer = asyncio.get_running_loop().call_later(self.warm_s, self._park)
        elif self._park_timer is not None:
            self._park_timer.cancel()
            self._park_timer = None

    def leave_memory(self) -> None:
        """The process is to end: park as soon as it only waits, and now if it does."""
        self.warm_s = 0.0
        self._park()

    def _park(self) -> None:
        if not self._slotless or self._shields:
            return
        dues = [wait.due for wait in self.waits.values() if wait.due is not None]
        self.parked = (min(dues) if dues else None, tuple(self.waits))
        self.stop("parked")


running = cast("ContextVar[Attempt | None]", here)


def attempt_of(context: Context | None) -> Attempt | None:
    """The attempt that code of this context runs for; None for the context: the current one."""
    return running.get() if context is None else context.get(running)


def current() -> Current:
    """The running job. Raises `UsageError` outside of one."""
    attempt = running.get()
    if attempt is None:
        raise UsageError("agentrt.current() was called outside of a job. Call it in an agent that a supervisor runs.")
    job = attempt.job
    return Current(job.id, job.agent, job.key, job.attempt, job.max_attempts, job.root)


@asynccontextmanager
async def shield() -> AsyncIterator[None]:
    """While the block runs, a cancellation of the job waits: for cleanup that must not stop half-way.

    Steps and messages inside go on, also after the job was told to stop; a lost lease is not held off. Outside of a job it does
    nothing.
    """
    attempt = running.get()
    if attempt is None:
        yield
        return
    with attempt.shielded():
        yield


async def through_outages(call_store: Callable[[], Awaitable[R]]) -> R:
    """Repeat a call, which must be one that may run twice, until the database answers."""
    failures = 0
    while True:
        try:
            return await call_store()
        except StoreUnavailable:
            failures += 1
            await asyncio.sleep(outage.delay_s(failures))


def _place() -> str:
    """file:line of the user's code that called a verb."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_own_folders):
        frame = frame.f_back
    file = _user_file(frame.f_code.co_filename)
    return "a task of its own" if file is None else f"{file}:{frame.f_lineno}"


@lru_cache(maxsize=1024)
def _user_file(name: str) -> str | None:
    """The name of a file of the user's; None: a verb was handed to gather or a task as it is, no line of the user's awaits it."""
    path = Path(name)
    return None if path.parent.name == "asyncio" else path.name


def _difference(kind: StepKind, mark: StepMark, subject: object, known: StepState) -> tuple[str, str]:
    """What was recorded, and what the code does instead."""
    assert known.mark is not None
    was = f"recorded as a {known.kind} at {known.mark.place} with {known.mark.fingerprint or 'no arguments'}"
    found = codec.storable_text(redact(codec.describe(subject)), 300)
    return was, f"now a {kind} at {mark.place} with {mark.fingerprint or 'no arguments'}: {found}"


def require_aware(name: str, moment: datetime) -> None:
    """Refuse a time without zone: it means another moment in each process. Raises `UsageError`."""
    if not isinstance(moment, datetime):
        raise UsageError(
            f"{name} is {moment!r}; it must be a datetime with a time zone: datetime.now(timezone.utc) + …"
        )
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise UsageError(
            f"{name} is {moment.isoformat()}, without a time zone. Give one: datetime.now(timezone.utc) + …"
        )
