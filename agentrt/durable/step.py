"""A step: a function that runs once in the life of its job. What it returned, or raised, is kept for every rerun."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, cast, overload

from agentrt import codec
from agentrt.calls import call, plain
from agentrt.context import Attempt, Begun, running
from agentrt.durable import fault
from agentrt.durable.budget import ask_again, raise_when_exceeded, spending
from agentrt.errors import Fail, PayloadInvalid, RetryAfter, StepTimeout, UsageError
from agentrt.limits import delay_s_max, require_within, retry_after_s_min
from agentrt.model import Retry, StepRecord, StepState
from agentrt.schema import result_adapter

P = ParamSpec("P")
R = TypeVar("R")


@overload
async def step(
    fn: Callable[P, Coroutine[Any, Any, R]],
    *args: Any,
    name: str | None = None,
    retry: Retry | None = None,
    timeout_s: float | None = None,
) -> R: ...
@overload
async def step(
    fn: Callable[P, R],
    *args: Any,
    name: str | None = None,
    retry: Retry | None = None,
    timeout_s: float | None = None,
) -> R: ...
async def step(
    fn: Callable[..., Any],
    *args: Any,
    name: str | None = None,
    retry: Retry | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Run `fn(*args)` once in the life of the job, and keep what came of it: a rerun gets the stored outcome.

    The value comes back decoded by the return annotation of `fn`, on the first run too. An exception is kept as data and raised
    as one that the same `except` clause catches. When it leaves the agent, the next attempt runs the step again. A plain
    function runs in a thread. Outside of a job this is a plain call.

    Args:
        name: what the step is called in the job's record; the name of `fn` when None. Calls of one name are numbered in order.
        retry: try again this often before the failure counts. The waits are rows: they hold no slot and survive a restart.
        timeout_s: the longest one try may take, in seconds; then it is cancelled (a thread is left behind).

    Raises:
        what `fn` raised. `Fail` is not tried again. `RetryAfter` waits as long without using up a try; without `retry` it gives
            the job back, as it does anywhere in an agent.
        StepTimeout: `timeout_s` has passed (a `TimeoutError`).
        Fail: the value cannot be stored (it would not come back equal, or is too large); the text names the step and the path.
        UsageError: `fn` has no name and none was given, or an option is out of its limits.
    """
    if timeout_s is not None:
        require_within("timeout_s", timeout_s, 0.001, delay_s_max)
    attempt = running.get()
    if attempt is None:
        return await call(fn, *args)
    adapter = result_adapter(plain(fn))
    begun = attempt.begin("step", name or name_of(fn), args)
    state = begun.known
    if state is not None:
        await ask_again(attempt, begun.mark.id)
    while state is None or not state.done:
        tries = state.tries if state is not None else 0
        if state is not None and state.due is not None:
            await attempt.until(begun.mark.id, state.due)
            attempt.require_going()
        one_try = _Try(attempt, begun, adapter, retry, timeout_s, tries)
        state = await one_try.run(fn, args)
    return outcome_of(state, adapter, begun.mark.id)


def name_of(fn: Callable[..., Any]) -> str:
    """What a step of `fn` is called when nobody says. Raises `UsageError`."""
    name = getattr(plain(fn), "__name__", None)
    if not name:
        raise UsageError(f"step({fn!r}) has no name of its own. Give it one: step(fn, …, name='fetch').")
    return cast("str", name)


def outcome_of(state: StepState, adapter: codec.Adapter, step_id: str) -> Any:
    """What a done step gives back, or raises."""
    if state.failure is not None:
        error = fault.decode(state.failure)
        fault.mark(error, step_id)
        raise error
    return codec.decode(state.output or "null", adapter, at=f"step {step_id}")


class _Try:
    """One call of a step's function, and the record of what came of it."""

    def __init__(
        self,
        attempt: Attempt,
        begun: Begun,
        adapter: codec.Adapter,
        retry: Retry | None,
        timeout_s: float | None,
        tries: int,
    ) -> None:
        self._attempt = attempt
        self._begun = begun
        self._adapter = adapter
        self._retry = retry
        self._timeout_s = timeout_s
        self._tries = tries

    async def run(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> StepState:
        with self._attempt.working(
            self._begun.mark.id
        ):  # the record included: what has happened is not parked unrecorded
            record = await self._record(fn, args)
            state = await self._attempt.record(record)
        await raise_when_exceeded(self._attempt, state, self._begun.mark.id)
        return state

    async def _record(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> StepRecord:
        with spending() as spent:
            try:
                value = await self._call(fn, args)
                record = StepRecord(self._begun.mark, output=self._encoded(value), tries=self._tries)
            except Exception as error:
                if self._attempt.stop_reason is not None:
                    raise  # what a cancellation became on its way out is no outcome
                record = self._failure(error)
        return spent.on(record)

    async def _call(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if self._timeout_s is None:
            return await self._attempt.perform(fn, args)
        timeout = asyncio.timeout(self._timeout_s)
        try:
            async with timeout:
                return await self._attempt.perform(fn, args)
        except TimeoutError:
            if timeout.expired():
                raise StepTimeout(f"step {self._begun.mark.id} ran longer than {self._timeout_s:g} s") from None
            raise

    def _encoded(self, value: Any) -> str:
        try:
            return codec.encode(value, self._adapter, bytes_max=self._attempt.value_bytes_max).decode()
        except PayloadInvalid as error:
            raise Fail(f"step {self._begun.mark.id}: its value cannot be stored, at {error}") from None

    def _failure(self, error: Exception) -> StepRecord:
        """The record of a failure: the last one, or the wait for the next try. Raises `error` when it is the job's affair."""
        tried = self._tries + 1
        wait_s: float | None = None
        if isinstance(error, RetryAfter):
            if self._retry is None:
                raise error
            tried = self._tries
            wait_s = min(max(error.seconds, retry_after_s_min), delay_s_max)
        elif self._retry is not None and not isinstance(error, Fail) and tried < self._retry.max_attempts:
            wait_s = self._retry.delay_s(tried)
        return StepRecord(
            self._begun.mark, done=wait_s is None, failure=fault.encode(error), wait_s=wait_s, tries=tried
        )
