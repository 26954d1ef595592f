"""The sender's side: a connection to the runtime's database, and handles on the jobs it holds."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from agentrt import codec
from agentrt.config import database_url
from agentrt.context import outage, running
from agentrt.errors import JobCancelled, JobFailed, JobNotFound, ReplyTimeout, StoreUnavailable, UsageError
from agentrt.model import NewJob, Result, Sent, State, send_batch_max
from agentrt.store import Store
from agentrt.store.listener import Listener
from agentrt.store.opening import open_store

R = TypeVar("R")

look_again_s = 30.0  # behind lost hints


@dataclass(frozen=True, slots=True)
class Job(Generic[R]):
    """A handle on one job."""

    id: int
    client: Client
    result_schema: codec.Adapter = field(default=codec.anything, repr=False)

    async def result(self, *, timeout_s: float | None = None) -> R:
        """Wait for the job's end and return what its agent returned.

        Raises:
            JobFailed, JobCancelled: how it ended.
            JobNotFound: no such job, at once.
            ReplyTimeout: no end within `timeout_s`. The job goes on.
        """
        ended = await self.client.wait(self.id, timeout_s=timeout_s)
        if ended.state is State.failed:
            raise JobFailed(self.id, ended.agent, ended.reason or "error", ended.error or "")
        if ended.state is State.cancelled:
            raise JobCancelled(self.id, ended.agent, ended.error or "")
        return cast("R", codec.decode(ended.result or "null", self.result_schema, at=f"result of job {self.id}"))

    async def status(self) -> State:
        """Where the job stands now. Raises `JobNotFound`."""
        row = await self.client.store.job(self.id)
        if row is None:
            raise JobNotFound(self.id)
        return State(row["state"])

    async def cancel(self, reason: str = "cancelled by the sender") -> bool:
        """End the job: at once when nobody runs it, else as soon as its coroutine has stopped.

        Returns whether a cancel was needed; False: it had ended already, and nothing changed. Raises `JobNotFound`.
        """
        return await self.client.cancel(self.id, reason)


class Client:
    """Sends messages and waits for results. Made by `connect()`; a supervisor has one of its own."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._waits: dict[int, set[asyncio.Future[Result]]] = {}
        self._rung = asyncio.Event()
        self.start_listening: Callable[[], None] | None = (
            None  # only who waits for results needs a listening connection
        )

    async def send(self, jobs: Sequence[NewJob], *, connection: Any = None) -> list[Sent]:
        """Store encoded messages. Inside a running attempt this goes on through outages: its sends cannot double."""
        sent: list[Sent] = []
        for start in range(0, len(jobs), send_batch_max):
            sent += await self._send_batch(jobs[start : start + send_batch_max], connection)
        return sent

    async def _send_batch(self, jobs: Sequence[NewJob], connection: Any) -> list[Sent]:
        failures = 0
        while True:
            try:
                return await self.store.send(jobs, connection)
            except StoreUnavailable:
                if running.get() is None or connection is not None:
                    raise
                failures += 1
                await asyncio.sleep(outage.delay_s(failures))

    def job(self, job_id: int) -> Job[Any]:
        """A handle on a job by its id."""
        return Job(job_id, self)

    async def cancel(self, job_id: int, reason: str) -> bool:
        """As `Job.cancel`."""
        state = await self.store.cancel(job_id, codec.storable_text(reason, 500))
        if state is None:
            raise JobNotFound(job_id)
        return state in ("cancelled", "requested")

    async def wait(self, job_id: int, *, timeout_s: float | None = None) -> Result:
        """Wait until a job has ended. Raises `JobNotFound`, `ReplyTimeout`."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        if self.start_listening is not None:
            self.start_listening()
            self.start_listening = None
        self._waits.setdefault(job_id, set()).add(future)
        self._rung.set()
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise ReplyTimeout(job_id, timeout_s or 0) from None
        finally:
            waiters = self._waits.get(job_id)
            if waiters is not None:
                waiters.discard(future)
                if not waiters:
                    self._waits.pop(job_id, None)

    def ring(self) -> None:
        """A hint that some job ended, or that hints may have been lost."""
        self._rung.set()

    async def run_waits(self) -> None:
        """Look up the jobs that are waited for, whenever the bell rings; runs as a task beside the client's user."""
        failures = 0
        while True:
            timeout_s = look_again_s if self._waits else None
            try:
                async with asyncio.timeout(timeout_s):
                    await self._rung.wait()
            except TimeoutError:
                pass
            self._rung.clear()
            if not self._waits:
                continue
            try:
                await self._look(list(self._waits))
                failures = 0
            except StoreUnavailable:
                failures += 1
                await asyncio.sleep(outage.delay_s(failures))
                self._rung.set()

    async def _look(self, job_ids: list[int]) -> None:
        """One query for all; those that ended are handed to their waiters, unknown ids raise there."""
        found = {result.id: result for result in await self.store.results(job_ids)}
        for job_id in job_ids:
            result = found.get(job_id)
            if result is not None and not result.state.final:
                continue
            for future in self._waits.pop(job_id, ()):
                if future.done():
                    continue
                if result is None:
                    future.set_exception(JobNotFound(job_id))
                else:
                    future.set_result(result)


_here: contextvars.ContextVar[Client | None] = contextvars.ContextVar("agentrt_client", default=None)
_everywhere: list[Client] = []  # the clients of this process, newest last: a request handler's task inherits no context


def find_client() -> Client:
    """The client of the running attempt, else of this context, else the newest of this process. Raises `UsageError`."""
    attempt = running.get()
    client = attempt.client if attempt is not None else _here.get() or (_everywhere[-1] if _everywhere else None)
    if client is None:
        raise UsageError(
            "There is no connection to send with. Wrap the call: async with agentrt.connect('postgresql://…'): …"
        )
    return client


@asynccontextmanager
async def connect(database: str | None = None, *, schema: str = "agentrt") -> AsyncIterator[Client]:
    """Open a client; `send`, `ask` and `result` use it while the block runs.

    Args:
        database: `postgresql://…` or `embedded:PATH`; None takes AGENTRT_DATABASE_URL, else the embedded server.

    An empty database gets its tables; an embedded one is also brought up to date.

    Raises `ConfigError`, `StoreUnavailable`, `SchemaOutdated` when the tables are not those of this agentrt.
    """
    url = database_url(database)
    store = await open_store(url, schema)
    try:
        await store.prepare(upgrade=url.startswith("embedded:"))
        client = Client(store)
        token = _here.set(client)
        _everywhere.append(client)
        tasks: list[asyncio.Task[None]] = []
        listener = Listener(store, lambda channel, _payload: client.ring() if channel == "done" else None, client.ring)

        def start_listening() -> None:
            tasks.extend(asyncio.ensure_future(work) for work in (client.run_waits(), listener.run()))

        client.start_listening = start_listening
        try:
            yield client
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            _everywhere.remove(client)
            _here.reset(token)
    finally:
        await store.close()
