"""What surrounds a running agent: which job it runs, its recorded steps, and the verbs that need to know them.

A context variable carries the attempt, so an agent called directly (a unit test) has none, and `step` then just calls.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from agentrt import codec
from agentrt.errors import Fail, PayloadInvalid, StoreUnavailable, UsageError
from agentrt.model import Claimed, Retry
from agentrt.store import Store

if TYPE_CHECKING:
    from agentrt.client import Client

P = ParamSpec("P")
R = TypeVar("R")

outage = Retry(base_s=0.05, factor=2, cap_s=1, jitter=0.5)


@dataclass(frozen=True, slots=True)
class Current:
    """The job that this code runs for."""

    job_id: int
    agent: str
    key: str | None
    attempt: int  # counted from 1
    max_attempts: int
    root: int  # the job that began the conversation


@dataclass(slots=True, eq=False)
class Attempt:
    """One run of a job under one lease."""

    job: Claimed
    store: Store
    client: Client
    step_names: Counter[str] = field(default_factory=Counter)
    stop_reason: str | None = None  # why the runtime cancels it: cancelled, timeout, lost, shutdown
    stop_text: str = ""
    lease_expires: float = 0.0  # on the monotonic clock, never later than the database thinks; moved on by the heart
    settled: bool = False  # its outcome is decided; a stop comes too late
    task: asyncio.Task[None] | None = None
    on_wait: Callable[[int], None] = lambda _change: None  # gives the slot back (-1) and takes it again (+1)

    def stop(self, reason: str, text: str = "") -> None:
        """Cancel the coroutine, once and for one reason; the first one counts."""
        if self.stop_reason is None and not self.settled and self.task is not None:
            self.stop_reason = reason
            self.stop_text = text
            self.task.cancel()

    def step_id(self, name: str) -> str:
        """The next id of this name; the same on every run of the job as long as its code asks in the same order."""
        number = self.step_names[name]
        self.step_names[name] += 1
        return f"{name}#{number}"

    async def record(self, step_id: str, output: str) -> str:
        """Store a step's output; returns the one that counts. Goes on through outages: the lease bounds it.

        Raises `LeaseLost` when the job has moved on.
        """
        failures = 0
        while True:
            try:
                return await self.store.record_step(self.job.id, self.job.fence, step_id, output)
            except StoreUnavailable:
                failures += 1
                await asyncio.sleep(outage.delay_s(failures))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While inside, the attempt holds no slot."""
        self.on_wait(-1)
        try:
            yield
        finally:
            self.on_wait(+1)


running: contextvars.ContextVar[Attempt | None] = contextvars.ContextVar("agentrt_attempt", default=None)


def current() -> Current:
    """The running job. Raises `UsageError` outside of one."""
    attempt = running.get()
    if attempt is None:
        raise UsageError("agentrt.current() was called outside of a job. Call it in an agent that a supervisor runs.")
    job = attempt.job
    return Current(job.id, job.agent, job.key, job.attempt, job.max_attempts, job.root)


@overload
async def step(fn: Callable[P, Coroutine[Any, Any, R]], *args: Any, name: str | None = None) -> R: ...
@overload
async def step(fn: Callable[P, R], *args: Any, name: str | None = None) -> R: ...
async def step(fn: Callable[..., Any], *args: Any, name: str | None = None) -> Any:
    """Run `fn(*args)` once in the life of the job, and keep what it returned: a rerun gets the stored value.

    The value comes back decoded by the return annotation of `fn`, on the first run too. A plain function runs in a
    thread. Outside of a job this is a plain call. Nothing is kept of a call that raised: it runs again on the next attempt.

    Args:
        name: what the step is called in the job's record; the name of `fn` when None. Calls of one name are numbered in order.

    Raises:
        Fail: the value cannot be stored (it would not come back equal); the text names the step and the path.
        UsageError: `fn` has no name and none was given.
    """
    attempt = running.get()
    if attempt is None:
        return await call(fn, *args)
    step_id = attempt.step_id(name or _name_of(fn))
    adapter = codec.result_adapter(_plain(fn))
    recorded = attempt.job.steps.get(step_id)
    if recorded is None:
        value = await call(fn, *args)
        try:
            output = codec.encode(value, adapter).decode()
        except PayloadInvalid as error:
            raise Fail(f"step {step_id}: its value cannot be stored, at {error}") from None
        recorded = await attempt.record(step_id, output)
    return codec.decode(recorded, adapter, at=f"step {step_id}")


async def call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Await a coroutine function; run a plain one in a thread of its own."""
    if inspect.iscoroutinefunction(_plain(fn)) or inspect.iscoroutinefunction(getattr(fn, "__call__", None)):  # noqa: B004 - asks for the method
        return await fn(*args, **kwargs)
    result = await in_thread(functools.partial(fn, *args, **kwargs))
    return await result if inspect.isawaitable(result) else result


async def in_thread(fn: Callable[[], R]) -> R:
    """Run a blocking function in a daemon thread, under a copy of this context.

    A cancelled wait leaves the thread behind; it ends with its function or with the process, which never waits for it
    (the threads of an executor would be joined when the interpreter ends).
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[R] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        if not future.done():
            set_outcome(outcome)

    def work() -> None:
        try:
            set_outcome: Callable[[Any], None] = future.set_result
            outcome: Any = context.run(fn)
        except BaseException as error:
            set_outcome, outcome = future.set_exception, _carried(error)
        if not loop.is_closed():
            loop.call_soon_threadsafe(deliver, set_outcome, outcome)

    threading.Thread(target=work, name="agentrt-call", daemon=True).start()
    return await future


def _carried(error: BaseException) -> BaseException:
    """StopIteration cannot travel through a future."""
    return RuntimeError(f"StopIteration: {error}") if isinstance(error, StopIteration) else error


def _plain(fn: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def _name_of(fn: Callable[..., Any]) -> str:
    name = getattr(_plain(fn), "__name__", None)
    if not name:
        raise UsageError(f"step({fn!r}) has no name of its own. Give it one: step(fn, …, name='fetch').")
    return cast("str", name)


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
