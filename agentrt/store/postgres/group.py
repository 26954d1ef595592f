"""A group: calls of concurrent tasks share a statement.

One that comes while few are under way goes at once and alone, so an idle system adds no delay. What comes meanwhile
waits until one of them has returned, and then goes together: the more there is to do, the more share a commit.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from agentrt.errors import AgentrtError, StoreUnavailable

I = TypeVar("I")  # noqa: E741 - an item
O = TypeVar("O")  # noqa: E741 - its outcome

under_way_max = 2  # statements: while the database works on one, the next is made ready
items_max = 200
bytes_max = 4 * 1024 * 1024


class Group(Generic[I, O]):
    """`write` stores many items, all or none, and answers each in order; `size` is the bytes of one."""

    def __init__(self, write: Callable[[Sequence[I]], Awaitable[Sequence[O]]], size: Callable[[I], int]) -> None:
        self._write = write
        self._size = size
        self._waiting: deque[tuple[I, asyncio.Future[O]]] = deque()
        self._under_way = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def put(self, item: I) -> O:
        """Store one item. Raises what `write` raises for this one alone.

        After a cancellation or `StoreUnavailable` it is unknown whether it was stored; nothing is repeated here.
        """
        if self._under_way < under_way_max and not self._waiting:
            self._under_way += 1
            try:
                (outcome,) = await self._write([item])
                return outcome
            finally:
                self._returned()
        future: asyncio.Future[O] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        return await future

    def _returned(self) -> None:
        """A statement has come back: what waits goes next, in a task that no caller's cancellation reaches."""
        self._under_way -= 1
        batch = self._take()
        if batch:
            self._under_way += 1
            task = asyncio.get_running_loop().create_task(self._flush(batch), context=contextvars.Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _take(self) -> list[tuple[I, asyncio.Future[O]]]:
        batch: list[tuple[I, asyncio.Future[O]]] = []
        size = 0
        while self._waiting and len(batch) < items_max and size < bytes_max:
            item, future = self._waiting.popleft()
            if not future.done():  # its caller was cancelled, and it has not been sent
                batch.append((item, future))
                size += self._size(item)
        return batch

    async def _flush(self, batch: list[tuple[I, asyncio.Future[O]]]) -> None:
        try:
            await self._store(batch)
        finally:
            for _, future in batch:
                if not future.done():  # the loop is being closed
                    future.cancel()
            self._returned()

    async def _store(self, batch: list[tuple[I, asyncio.Future[O]]]) -> None:
        try:
            outcomes = await self._write([item for item, _ in batch])
        except (
            StoreUnavailable
        ) as error:  # perhaps it was stored, perhaps not: each caller decides what that means for it
            for _, future in batch:
                _settle(future.set_exception, future, StoreUnavailable(str(error)))
        except AgentrtError as error:  # it changed nothing: which of them was it?
            if len(batch) > 1:
                for one in batch:
                    await self._store([one])
            else:
                _settle(batch[0][1].set_exception, batch[0][1], error)
        except Exception as error:  # a fault of ours: those who wait must hear of it
            for _, future in batch:
                _settle(future.set_exception, future, error)
        else:
            for (_, future), outcome in zip(batch, outcomes, strict=True):
                _settle(future.set_result, future, outcome)

    async def close(self) -> None:
        """Wait for what is under way."""
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _settle(set_outcome: Callable[[Any], None], future: asyncio.Future[Any], outcome: Any) -> None:
    if not future.done():  # else its caller was cancelled
        set_outcome(outcome)
