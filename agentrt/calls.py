"""How user functions are called: coroutines are awaited, plain functions run in a thread of their own."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable
from types import FunctionType
from typing import Any, TypeVar

R = TypeVar("R")


async def call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Await a coroutine function; run a plain one in a thread of its own."""
    return await awaitable(fn)(*args, **kwargs)


def awaitable(fn: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """A coroutine function as it is, a plain one as one that runs it in a thread of its own."""
    return fn if _is_coroutine_function(fn) else functools.partial(_call_in_thread, fn)


async def _call_in_thread(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    result = await in_thread(functools.partial(fn, *args, **kwargs))
    return await result if inspect.isawaitable(result) else result


def _is_coroutine_function(fn: Callable[..., Any]) -> bool:
    if isinstance(fn, FunctionType) and fn.__code__.co_flags & inspect.CO_COROUTINE:  # most are: inspect asks much more
        return True
    return inspect.iscoroutinefunction(plain(fn)) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004 - asks for the method


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


def plain(fn: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn
