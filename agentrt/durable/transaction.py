"""The agent's own SQL, the record of it and outgoing messages, committed together or not at all."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from agentrt import codec
from agentrt.calls import plain
from agentrt.context import Attempt, Begun, outage, running
from agentrt.durable import fault
from agentrt.durable.budget import raise_when_exceeded, spending
from agentrt.durable.step import name_of, outcome_of
from agentrt.errors import Fail, PayloadInvalid, RetryAfter, StoreError, StoreUnavailable, UsageError
from agentrt.model import StepRecord, StepState
from agentrt.schema import result_adapter

P = ParamSpec("P")
R = TypeVar("R")

joined: contextvars.ContextVar[Any] = contextvars.ContextVar("agentrt_transaction", default=None)


class _Transaction(Awaitable[R]):
    """What `transaction(…)` returns: to be awaited. A `with` block could not be left out by a rerun, so it is none."""

    def __init__(self, run: Callable[[], Awaitable[R]]) -> None:
        self._run = run

    def __await__(self) -> Any:
        return self._run().__await__()

    async def __aenter__(self) -> Any:
        raise UsageError(
            "transaction() takes the function that is to run: await agentrt.transaction(fn, …), where fn(connection, …) uses the"
            " connection. The body of an 'async with' would run again on every rerun."
        )

    async def __aexit__(self, *_: object) -> None:
        """Never reached: the block cannot be entered."""


def transaction(
    fn: Callable[Concatenate[Any, P], Awaitable[R]] | None = None, *args: P.args, **kwargs: P.kwargs
) -> Awaitable[R]:
    """Run `fn(connection, *args)` once in the life of the job, in a transaction that also holds the record of it.

    The connection is asyncpg's, to the runtime's own database. What `fn` does with it, the messages it sends and the step's
    record commit together: whatever dies when, all of it is there or none. Used twice, each is a step of its own.

    Raises:
        what `fn` raised; then nothing was written but the failure, kept as for `step`.
        UsageError: outside of a job, or inside another transaction.
    """
    if fn is None:
        return _Transaction(_refuse)
    return _Transaction(lambda: _transaction(fn, args, kwargs))


async def _refuse() -> Any:
    raise UsageError("transaction() needs the function that is to run: await agentrt.transaction(fn, …).")


async def _transaction(fn: Callable[..., Awaitable[R]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
    attempt = running.get()
    if attempt is None:
        raise UsageError(
            "agentrt.transaction() was called outside of a job. Call it in an agent that a supervisor runs."
        )
    if joined.get() is not None:
        raise UsageError(
            "agentrt.transaction() was called inside another transaction. Use the connection that is there."
        )
    adapter = result_adapter(plain(fn))
    begun = attempt.begin("step", name_of(fn), (*args, *kwargs.items()))
    state = begun.known
    failures = 0
    while state is None or not state.done:
        try:
            state = await _once(attempt, begun, fn, args, kwargs, adapter)
            await raise_when_exceeded(attempt, state, begun.mark.id)
        except StoreUnavailable:  # perhaps in the commit: what is stored tells
            failures += 1
            await asyncio.sleep(outage.delay_s(failures))
            state = await _stored(attempt, begun)
    return cast("R", outcome_of(state, adapter, begun.mark.id))


async def _once(
    attempt: Attempt,
    begun: Begun,
    fn: Callable[..., Awaitable[Any]],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    adapter: codec.Adapter,
) -> StepState:
    with attempt.working(begun.mark.id), spending() as spent:
        try:
            async with attempt.store.transaction() as connection:
                token = joined.set(connection)
                try:
                    value = await fn(connection, *args, **kwargs)
                finally:
                    joined.reset(token)
                output = _encoded(value, adapter, begun, attempt.value_bytes_max)
                record = spent.on(StepRecord(begun.mark, output=output))
                return await attempt.store.record(attempt.owner, record, connection)
        except (RetryAfter, StoreError):
            raise
        except Exception as error:
            if attempt.stop_reason is not None:
                raise
            return await attempt.record(spent.on(StepRecord(begun.mark, failure=fault.encode(error))))


def _encoded(value: Any, adapter: codec.Adapter, begun: Begun, bytes_max: int) -> str:
    try:
        return codec.encode(value, adapter, bytes_max=bytes_max).decode()
    except PayloadInvalid as error:
        raise Fail(f"step {begun.mark.id}: its value cannot be stored, at {error}") from None


async def _stored(attempt: Attempt, begun: Begun) -> StepState | None:
    try:
        answers = await attempt.store.answers([(attempt.job.id, begun.mark.id)])
    except StoreUnavailable:
        return None
    return answers[0][2] if answers else None
