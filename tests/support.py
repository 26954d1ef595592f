"""What the tests share: waiting for states, a real supervisor process with its log, and direct SQL."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import asyncpg

T = TypeVar("T")
bound_s = 30.0  # generous: a busy machine is slow, a broken runtime never gets there


async def eventually(look: Callable[[], Awaitable[T]], *, within_s: float = bound_s, what: str = "") -> T:
    """Look again and again until the answer is true; returns it. Fails with the last answer."""
    deadline = time.monotonic() + within_s
    while True:
        answer = await look()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s:g} s: {what or look}; last answer {answer!r}")
        await asyncio.sleep(0.02)


class Sql:
    """A direct link to the database, beside the runtime."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection

    async def value(self, text: str, *values: Any) -> Any:
        return await self.connection.fetchval(text, *values)

    async def rows(self, text: str, *values: Any) -> list[dict[str, Any]]:
        return [dict(row) for row in await self.connection.fetch(text, *values)]

    async def run(self, text: str, *values: Any) -> str:
        return await self.connection.execute(text, *values)

    async def job(self, job_id: int) -> dict[str, Any]:
        (row,) = await self.rows("select * from agentrt.all_jobs where id = $1", job_id)
        return row

    async def state(self, job_id: int) -> str | None:
        state: str | None = await self.value("select state from agentrt.all_jobs where id = $1", job_id)
        return state

    async def until(self, job_id: int, *states: str, within_s: float = bound_s) -> dict[str, Any]:
        """Wait until a job is in one of the states; returns its row."""

        async def look() -> bool:
            return await self.state(job_id) in states

        await eventually(look, within_s=within_s, what=f"job {job_id} in {states}")
        return await self.job(job_id)

    async def until_count(self, text: str, count: int, within_s: float = bound_s) -> None:
        async def look() -> bool:
            return bool(await self.value(text) == count)

        await eventually(look, within_s=within_s, what=f"{count} of {text}")

    async def until_none_unfinished(self, within_s: float = bound_s) -> None:
        async def look() -> bool:
            return bool(await self.value("select count(*) = 0 from agentrt.jobs"))

        await eventually(look, within_s=within_s, what="no unfinished job")


waiting_from = "pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
waiting = f"select count(*) from {waiting_from}"  # statements of this database that wait for a lock


@asynccontextmanager
async def held(database: str, job_id: int) -> AsyncIterator[None]:
    """Whoever records a step of this job, or sends from it, waits."""
    connection = await asyncpg.connect(database)
    try:
        async with connection.transaction():
            await connection.execute("select 1 from agentrt.jobs where id = $1 for update", job_id)
            yield
    finally:
        await connection.close()


@asynccontextmanager
async def locked(database: str, key: str, agent: str = "a") -> AsyncIterator[None]:
    """Whoever sends to this mailbox waits."""
    connection = await asyncpg.connect(database)
    try:
        async with connection.transaction():
            await connection.execute("select agentrt.lock_key($1, $2)", agent, key)
            yield
    finally:
        await connection.close()


class Program:
    """A real `agentrt` process, its log kept in a file, ended by pid whatever happens."""

    def __init__(self, arguments: list[str], folder: Path, environ: Mapping[str, str], name: str = "agentrt") -> None:
        self.log_path = folder / f"{name}-{time.monotonic_ns()}.log"
        self.ledger = folder / "ledger.jsonl"
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "agentrt", *arguments],
                cwd=folder,
                env={**os.environ, "LEDGER": str(self.ledger), **environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def events(self, event: str | None = None, **match: Any) -> list[dict[str, Any]]:
        """The log's JSON lines, those of one event and with these fields when given."""
        found = []
        for line in self.log().splitlines(keepends=True):
            if not line.startswith("{") or not line.endswith("}\n"):  # the last may not be whole yet
                continue
            entry = json.loads(line)
            if event in (None, entry.get("event")) and all(entry.get(k) == v for k, v in match.items()):
                found.append(entry)
        return found

    async def until(
        self, event: str, *, count: int = 1, within_s: float = bound_s, **match: Any
    ) -> list[dict[str, Any]]:
        """Wait for log events; fails when the process ends without them."""

        async def look() -> list[dict[str, Any]]:
            found = self.events(event, **match)
            if len(found) >= count:
                return found
            assert self.process.poll() is None, (
                f"ended with {self.process.returncode} before {event}:\n{self.log()[-3000:]}"
            )
            return []

        return await eventually(look, within_s=within_s, what=f"{event} {match} in the log:\n{self.log()[-2000:]}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self, within_s: float = bound_s) -> int:
        """Wait for the end; returns the exit code."""

        async def look() -> bool:
            return self.process.poll() is not None

        await eventually(look, within_s=within_s, what=f"end of process {self.pid}:\n{self.log()[-2000:]}")
        assert self.process.returncode is not None
        return self.process.returncode

    async def stop(self) -> int:
        """SIGTERM and wait."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return await self.ended()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def notes(self, kind: str | None = None) -> list[dict[str, Any]]:
        """What the agents wrote to the ledger (see tests/cases/ledger.py), over all processes of this folder."""
        if not self.ledger.exists():
            return []
        entries = [json.loads(line) for line in self.ledger.read_text().splitlines()]
        return [entry for entry in entries if kind in (None, entry["kind"])]

    async def noted(self, kind: str, count: int = 1, within_s: float = bound_s, **match: Any) -> list[dict[str, Any]]:
        """Wait for notes of a kind and with these fields in the ledger; returns them."""

        async def look() -> list[dict[str, Any]]:
            found = [note for note in self.notes(kind) if all(note.get(k) == v for k, v in match.items())]
            return found if len(found) >= count else []

        return await eventually(look, within_s=within_s, what=f"{count} notes {kind} {match}:\n{self.log()[-2000:]}")
