"""Agents and their addresses: what the author of an agent declares, and what a sender holds.

Declaring an agent touches no database and no registry; `agentrt run MODULE` finds the `Agent` objects of a module.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, ParamSpec, Self, TypeVar, cast, overload

from agentrt import codec
from agentrt.calls import awaitable
from agentrt.client import Client, Job, find_client
from agentrt.context import require_aware, running
from agentrt.durable.send import send_as_steps
from agentrt.durable.transaction import joined
from agentrt.durable.wait import reply
from agentrt.errors import UsageError
from agentrt.limits import attempts_max, delay_s_max, priority_lowest, require_name, require_whole, require_within
from agentrt.model import AgentPolicy, Budget, NewJob, Order, Retry
from agentrt.schema import arguments_adapter, result_adapter

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Options:
    """How a message is sent. Times in seconds; None means what the agent or the runtime says."""

    key: str | None = None
    priority: int = 5
    delay_s: float = 0.0
    run_at: datetime | None = None
    max_attempts: int | None = None
    dedup: str | None = None
    deadline_s: float | None = None
    timeout_s: float | None = None
    connection: Any = None
    client: Client | None = None

    def __post_init__(self) -> None:
        if self.key is not None:
            require_name("key", self.key)
        if self.dedup is not None:
            require_name("dedup", self.dedup)
        require_whole("priority", self.priority, 0, priority_lowest)
        require_within("delay_s", self.delay_s, 0, delay_s_max)
        if self.max_attempts is not None:
            require_whole("max_attempts", self.max_attempts, 1, attempts_max)
        if self.timeout_s is not None:
            require_within("timeout_s", self.timeout_s, 0.001, delay_s_max)
        if self.deadline_s is not None:
            require_within("deadline_s", self.deadline_s, 0.001, delay_s_max)
        if self.run_at is not None:
            require_aware("run_at", self.run_at)
            if self.run_at > datetime.now(UTC) + timedelta(seconds=delay_s_max):
                raise UsageError(
                    f"run_at is {self.run_at.isoformat()}; at most {delay_s_max / 86400 / 366:g} years ahead are allowed."
                )


@dataclass(slots=True)
class Message(Generic[R]):
    """A message that was checked and encoded but not sent: `agentrt.send_many([...])` stores many at once."""

    job: NewJob
    result_schema: codec.Adapter
    options: Options


class Address(Generic[P, R]):
    """Where a message goes: an agent, with a key or without, and how it is sent."""

    def __init__(self, name: str, schema: codec.Adapter, result_schema: codec.Adapter) -> None:
        require_name("agent name", name)
        self.name = name
        self._schema = schema
        self._result_schema = result_schema
        self._options = Options()

    def __getitem__(self, key: str) -> Self:
        """The mailbox of `key`: its messages are handled one at a time, in the order in which they were committed."""
        require_name("key", key)
        return self.options(key=key)

    def options(self, **changes: Any) -> Self:
        """This address with other send options: `key`, `priority` (0 first … 9), `delay_s`, `run_at` (aware), `max_attempts`,
        `dedup` (at most one job per value and agent, also after it ended), `deadline_s` (after so long the job and all that
        follows from it is not started any more, and cancelled), `timeout_s` (of `ask`), `connection` (an asyncpg connection:
        the message is part of its transaction), `client`.

        Raises `UsageError` for an unknown option or a value outside its limits.
        """
        changed = copy.copy(self)
        try:
            changed._options = replace(self._options, **changes)
        except TypeError:
            known = ", ".join(Options.__slots__)
            wrong = ", ".join(name for name in changes if name not in Options.__slots__)
            raise UsageError(f"{self.name}.options() does not know {wrong}. It takes: {known}.") from None
        return changed

    def message(self, /, *args: P.args, **kwargs: P.kwargs) -> Message[R]:
        """Check and encode a message without sending it. Raises `PayloadInvalid` with the path to what is wrong."""
        payload = codec.encode(self._arguments(args, kwargs), self._schema, at=self.name)
        options = self._options
        run_at = options.run_at if options.run_at is not None and options.run_at > datetime.now(UTC) else None
        how = (options.priority, options.delay_s, run_at, options.max_attempts, options.dedup, options.deadline_s)
        job = NewJob(self.name, payload, options.key, *how)
        return Message(job, self._result_schema, options)

    async def send(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store a message; it is durable when this returns (with `connection=`: when that transaction commits).

        Inside an agent the message is sent once, however often the attempt is repeated.

        Raises:
            PayloadInvalid: it does not fit the agent's schema or would not come back equal. Nothing was sent.
            UsageError: there is no client (`async with agentrt.connect(): …`). Nothing was sent.
            StoreUnavailable: unknown whether it was stored; give a `dedup` to send it again safely.
        """
        (job,) = await send_many([self.message(*args, **kwargs)])
        return cast("Job[R]", job)

    async def ask(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Send, and wait for the result. Inside an agent this is a step: it survives a crash, and holds no slot meanwhile.

        Raises:
            JobFailed, JobCancelled: how the job asked ended.
            ReplyTimeout: no result within `options(timeout_s=…)`. The job goes on.
            AskCycle: it could never be answered, because who holds that mailbox waits for the asker. Nothing was sent.
            PayloadInvalid: as `send`.
        """
        message = self.message(*args, **kwargs)
        attempt = running.get()
        timeout_s = self._options.timeout_s
        if attempt is None:
            return cast("R", await _client_of(message).ask(message.job, message.result_schema, timeout_s))
        if joined.get() is not None:
            raise UsageError(
                "ask() was called inside transaction(): the message is only sent when that commits. Use send()."
            )
        message.job.asks = True
        message.job.timeout_s = timeout_s
        ((begun, state),) = await send_as_steps(attempt, [message.job], _client_of(message), self._options.connection)
        schema = message.result_schema
        del message  # the wait may be long, and there may be thousands of them
        return cast("R", await reply(attempt, begun, state, schema, timeout_s))

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if args:
            raise UsageError(f"{self.name}: this address knows no parameter order. Name each argument: send(text=…).")
        return kwargs

    def __repr__(self) -> str:
        key = f"[{self._options.key!r}]" if self._options.key is not None else ""
        return f"<{type(self).__name__} {self.name}{key}>"


class Agent(Address[P, R]):
    """A coroutine (or plain function) with a name, a message schema and a policy. Made by `@agent`.

    Calling it runs the function here and now, without a job, which is how it is unit-tested.
    """

    def __init__(
        self,
        fn: Callable[P, Any],
        *,
        name: str | None = None,
        concurrency: int | None = None,
        limit: int | None = None,
        retry: Retry | None = None,
        timeout_s: float | None = None,
        lease_s: float | None = None,
        order: Order = "strict",
        budget: Budget | None = None,
    ) -> None:
        if not callable(fn) or isinstance(fn, type):
            raise UsageError(f"@agent was put on {fn!r}; it goes on a coroutine function or a plain function.")
        own_name = name or fn.__name__
        require_name("agent name", own_name)
        super().__init__(own_name, arguments_adapter(fn, own_name), result_adapter(fn))
        for what, count in (("concurrency", concurrency), ("limit", limit)):
            if count is not None:
                require_whole(f"agent {own_name!r}: {what}", count, 1, attempts_max)
        for what, seconds, least in (("timeout_s", timeout_s, 0.001), ("lease_s", lease_s, 0.3)):
            if seconds is not None:
                require_within(f"agent {own_name!r}: {what}", seconds, least, delay_s_max)
        if order not in ("strict", "loose"):
            raise UsageError(f"agent {own_name!r}: order is {order!r}; it must be 'strict' or 'loose'.")
        self.fn = fn
        self.run = awaitable(fn)
        self._signature = inspect.signature(fn)
        parameters = self._signature.parameters.values()
        self._parameters = {parameter.name for parameter in parameters}
        self._positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        self._complete = len(self._positional) == len(self._parameters)  # so many values by place are all there are
        self.concurrency = concurrency
        self.limit = limit
        self.retry = retry or Retry()
        self.timeout_s = timeout_s
        self.lease_s = lease_s
        self.order = order
        self.budget = budget
        self._returns_none = codec.takes_null(self._result_schema)
        self.__doc__ = fn.__doc__

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        return self.run(*args, **kwargs)

    def policy(self, default_lease_s: float) -> AgentPolicy:
        """What the store must know to claim for this agent."""
        return AgentPolicy(
            self.name, self.concurrency, self.limit, self.retry.max_attempts, self.lease_s or default_lease_s
        )

    def decode_arguments(self, payload: str) -> dict[str, Any]:
        """The arguments of a stored message. Raises `PayloadInvalid`: it was written past the schema, or by older code."""
        arguments: dict[str, Any] = codec.decode(payload, self._schema, at=self.name)
        return arguments

    def encode_result(self, value: Any) -> str:
        """The result as it is stored. Raises `PayloadInvalid`."""
        if value is None and self._returns_none:
            return "null"
        return codec.encode(value, self._result_schema, at=f"result of {self.name}").decode()

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if not args and kwargs.keys() == self._parameters:
            return kwargs
        if self._complete and not kwargs and len(args) == len(self._positional):
            return dict(zip(self._positional, args, strict=True))
        try:
            return self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise UsageError(f"{self.name}{self._signature}: {error}.") from None


@overload
def agent(fn: Callable[P, Coroutine[Any, Any, R]], /) -> Agent[P, R]: ...
@overload
def agent(fn: Callable[P, R], /) -> Agent[P, R]: ...
@overload
def agent(
    *,
    name: str | None = None,
    concurrency: int | None = None,
    limit: int | None = None,
    retry: Retry | None = None,
    timeout_s: float | None = None,
    lease_s: float | None = None,
    order: Order = "strict",
    budget: Budget | None = None,
) -> AgentDecorator: ...
def agent(fn: Callable[..., Any] | None = None, /, **settings: Any) -> Any:
    """Declare an agent: `@agent` or `@agent(…)` on a coroutine function, or a plain one (which runs in a thread).

    Args:
        name: the address; the function's name when None.
        concurrency: how many of it run at a time in one process; None: as many as there are slots.
        limit: how many of it run at a time over all processes.
        retry: attempts and the waits between them.
        timeout_s: the longest one attempt may take; a longer one is cancelled and counts as failed.
        lease_s: how long a claim is good without a heartbeat; after a crash the job is taken back when it ends.
        budget: what each job of it, with all that follows from it, may use.
        order: for keyed messages: 'strict', a job that waits for its retry keeps its place; 'loose', ready ones may pass.

    Raises `UsageError` at once when the signature cannot be a message schema or a setting is out of its limits.
    """
    if fn is not None:
        return Agent(fn)
    return lambda function: Agent(function, **settings)


class AgentDecorator:
    """The type of `@agent(…)`."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Agent[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Agent[P, R]: ...
    def __call__(self, fn: Callable[P, Any], /) -> Agent[P, Any]:
        raise NotImplementedError


def to(name: str) -> Address[..., Any]:
    """The address of an agent whose code is elsewhere: `to("discord_notify").send(content="…")`, arguments by name."""
    return Address(name, codec.anything, codec.anything)


async def send_many(
    messages: list[Message[Any]], *, client: Client | None = None, connection: Any = None
) -> list[Job[Any]]:
    """Store many messages in one go, all or none; the jobs come back in the same order.

    Raises what `send` raises. More than 500 messages outside of a caller's transaction are stored in parts of 500.
    """
    if not messages:
        return []
    attempt = running.get()
    sender = client or _client_of(messages[0])
    connection = connection or messages[0].options.connection
    if attempt is None:
        sent = await sender.send([message.job for message in messages], connection=connection)
        ids = [answer.id for answer in sent]
    else:
        jobs = [message.job for message in messages]
        sent_as_steps = await send_as_steps(attempt, jobs, sender, connection or joined.get())
        ids = [cast("int", state.child) for _, state in sent_as_steps]
    return [Job(job_id, sender, message.result_schema) for job_id, message in zip(ids, messages, strict=True)]


def _client_of(message: Message[Any]) -> Client:
    return message.options.client or find_client()
