"""The sender's side: a connection to the runtime's database, and handles on the jobs it holds."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar, cast

from agentrt import codec
from agentrt.config import database_url
from agentrt.context import outage, running, through_outages
from agentrt.durable.wait import missing, result_as_step
from agentrt.errors import (
    DecisionRefused,
    JobCancelled,
    JobFailed,
    JobNotFound,
    ReplyTimeout,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from agentrt.limits import require_name, send_batch_max
from agentrt.model import NewJob, Result, Sender, Sent, State
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
        """Wait for the job's end and return what its agent returned. Inside an agent the wait is a step, as `ask`.

        Raises:
            JobFailed, JobCancelled: how it ended.
            JobNotFound: no such job, at once (JobExpired: it was pruned).
            ReplyTimeout: no end within `timeout_s`. The job goes on.
        """
        attempt = running.get()
        if attempt is not None:
            return cast("R", await result_as_step(attempt, self.id, self.result_schema, timeout_s))
        return cast("R", self.client.outcome(await self.client.wait(self.id, timeout_s=timeout_s), self.result_schema))

    async def status(self) -> State:
        """Where the job stands now. Raises `JobNotFound`."""
        row = await self.client.store.job(self.id)
        if row is None:
            raise JobNotFound(self.id)
        return State(row["state"])

    async def cancel(self, reason: str = "cancelled by the sender", *, tree: bool = True) -> bool:
        """End the job: at once when nobody runs it, else as soon as its coroutine has stopped.

        `tree`: the jobs that it waits for, and those that they wait for, as well.

        Returns whether a cancel was needed; False: it had ended already, and nothing changed. Raises `JobNotFound`.
        """
        return await self.client.cancel(self.id, reason, tree=tree)


class Client:
    """Sends messages and waits for results. Made by `connect()`; a supervisor has one of its own."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._waits: dict[int, set[asyncio.Future[Result]]] = {}
        self._rung: set[int] = set()
        self._bell = asyncio.Event()
        self._ends_heard = 0
        self.start_listening: Callable[[], None] | None = None  # only who waits for results needs a connection for it
        self.listening: Callable[[], bool] = lambda: False

    async def send(self, jobs: Sequence[NewJob], *, connection: Any = None, sender: Sender | None = None) -> list[Sent]:
        """Store encoded messages. As steps of an attempt (`sender`) this goes on through outages: they cannot double."""
        sent: list[Sent] = []
        for start in range(0, len(jobs), send_batch_max):
            batch = jobs[start : start + send_batch_max]
            if sender is None or connection is not None:
                sent += await self.store.send(batch, connection, sender)
            else:
                sent += await through_outages(partial(self.store.send, batch, None, sender))
        return sent

    async def ask(self, job: NewJob, schema: codec.Adapter, timeout_s: float | None) -> Any:
        """Send from outside of jobs, and wait for the end. Raises what `Job.result` raises."""
        self._listen()
        job.watched = True
        heard = self._ends_heard if self.listening() else -1
        (sent,) = await self.send([job])
        known_running = (
            not sent.existed and heard == self._ends_heard
        )  # its end, if it has come, was not heard: look later
        return self.outcome(await self.wait(sent.id, timeout_s=timeout_s, look=not known_running), schema)

    def outcome(self, ended: Result, schema: codec.Adapter) -> Any:
        """What a job that has ended gives back, or raises."""
        if ended.state is State.failed:
            raise JobFailed(ended.id, ended.agent, ended.reason or "error", ended.error or "")
        if ended.state is State.cancelled:
            raise JobCancelled(ended.id, ended.agent, ended.error or "")
        return codec.decode(ended.result or "null", schema, at=f"result of job {ended.id}")

    def job(self, job_id: int) -> Job[Any]:
        """A handle on a job by its id."""
        return Job(job_id, self)

    async def cancel(self, job_id: int, reason: str, *, tree: bool = True) -> bool:
        """As `Job.cancel`."""
        state = await self.store.cancel(job_id, codec.storable_text(reason, 500), tree=tree)
        if state is None:
            raise JobNotFound(job_id)
        return state in ("cancelled", "requested")

    async def decide(self, decision_id: int, option: str, *, by: str) -> None:
        """Answer a question, by its id or that of the one job that asks it. The first valid answer wins.

        Raises `DecisionRefused`: already decided (by whom, what), expired, no such option, not yours to answer, no such question.
        """
        require_name("by", by)
        row = await self.store.decide(decision_id, codec.storable_text(option, 300), by)
        if row is None:
            raise DecisionRefused(
                f"There is no open question {decision_id}. 'agentrt decide' lists those that are open."
            )
        verdicts = {
            "already": f"already decided by {row['answered_by']}: {row['answer']}",
            "expired": "it has expired",
            "closed": "its job has ended",
            "option": f"{option!r} is none of its options: {', '.join(row['options'])}",
            "who": f"{by} may not answer it, only {', '.join(row['who'] or ())}",
        }
        if row["verdict"] != "accepted":
            raise DecisionRefused(f"Question {row['decision']}: {verdicts[row['verdict']]}.")

    async def wait(self, job_id: int, *, timeout_s: float | None = None, look: bool = True) -> Result:
        """Wait until a job has ended. Raises `JobNotFound`, `ReplyTimeout`.

        `look`: at how it stands now; not needed right after it was sent with `watched`.
        """
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._listen()
        self._waits.setdefault(job_id, set()).add(future)
        if look:
            self.ring(job_id)
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

    def _listen(self) -> None:
        if self.start_listening is not None:
            self.start_listening()
            self.start_listening = None

    def ring(self, job_id: int | None = None) -> None:
        """A hint that this job has ended; None: hints may have been lost."""
        self._ends_heard += 1
        if job_id is None:
            self._rung.update(self._waits)
        elif job_id in self._waits:
            self._rung.add(job_id)
        if self._rung:
            self._bell.set()

    async def run_waits(self) -> None:
        """Look up the jobs that are waited for when they are rung, and all now and then; runs as a task beside the user."""
        failures = 0
        while True:
            try:
                async with asyncio.timeout(look_again_s if self._waits else None):
                    await self._bell.wait()
            except TimeoutError:
                self._rung.update(self._waits)
            self._bell.clear()
            job_ids = [job_id for job_id in self._rung if job_id in self._waits]
            self._rung.clear()
            if not job_ids:
                continue
            try:
                await self._look(job_ids)
                failures = 0
            except StoreUnavailable:
                failures += 1
                await asyncio.sleep(outage.delay_s(failures))
                self.ring()
            except StoreError as error:  # it will not mend by itself: those who wait are told
                for future in (future for job_id in job_ids for future in self._waits.pop(job_id, ())):
                    if not future.done():
                        future.set_exception(error)

    async def _look(self, job_ids: list[int]) -> None:
        """One query for all; those that ended are handed to their waiters, unknown ids raise there."""
        found = {result.id: result for result in await self.store.results(job_ids)}
        for job_id in job_ids:
            result = found.get(job_id)
            if result is not None and not result.state.final:
                continue
            gone = await missing(self.store, job_id) if result is None else None
            for future in self._waits.pop(job_id, ()):
                if future.done():
                    continue
                if gone is not None:
                    future.set_exception(gone)
                else:
                    future.set_result(cast("Result", result))


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

        def heard(channel: str, payload: str) -> None:
            if channel == "done":
                client.ring(int(payload))

        listener = Listener(store, heard, client.ring)

        def start_listening() -> None:
            tasks.extend(asyncio.ensure_future(work) for work in (client.run_waits(), listener.run()))

        client.start_listening = start_listening
        client.listening = lambda: listener.listening
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
