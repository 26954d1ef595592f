"""One peer in the run: its processes, its database, its probe."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from tests.bench.peers.adapter import Kind, Settings
from tests.bench.peers.environments import NotMeasured, last_line
from tests.bench.peers.probe import Probe, now
from tests.bench.peers.server import Server

root = Path(__file__).parents[3]
start_s_max = 60.0
send_s_max = 300.0
statement_s_max = 300.0
near = {"pingpong": "latency", "backlog": "throughput"}  # whose settings are taken where there are no own ones
warm_jobs = 5
shared = Path("/dev/shm")
memory = shared if shared.is_dir() else Path(tempfile.gettempdir())  # no disk write may be behind a probe


@dataclass
class Contestant:
    """A library with its environment. `fresh` gives it an empty database; `close` takes all away."""

    name: str
    version: str
    python: Path
    server: Server
    folder: Path
    info: dict[str, Any] = field(default_factory=dict)
    workers: list[asyncio.subprocess.Process] = field(default_factory=list)
    dsn: str = ""
    _killed: set[int] = field(default_factory=set)

    @property
    def _probe_path(self) -> Path:
        return memory / f"agentrt-peers-{os.getpid()}-{self.name}"

    @property
    def database(self) -> str:
        return f"peers_{self.name}"

    async def meet(self) -> None:
        """Ask the adapter what it can do. Raises `NotMeasured`."""
        self.info = await self._role("info")

    def purpose(self, wanted: str) -> str:
        """The name of the settings for a purpose."""
        settings = self.info["settings"]
        for purpose in (wanted, near.get(wanted, "")):
            if purpose in settings:
                return purpose
        return "default"

    def settings(self, purpose: str) -> Settings:
        settings: Settings = self.info["settings"][purpose]
        return settings

    def purposes(self, best: str) -> dict[str, str]:
        """The settings to measure: as it comes, and the best for a purpose where that is another."""
        chosen = self.purpose(best)
        return {"default": "default"} if chosen == "default" else {"default": "default", "best": chosen}

    # ------------------------------------------------------------------ its database and its probe

    async def fresh(self, slots: int) -> None:
        """An empty database with its tables, and a probe with so many slots and those of the warm-up."""
        await self.kill()
        self.dsn = await self.server.fresh(self.database)
        await self._role("setup", self.dsn)
        self.probe = Probe(self._probe_path, slots=slots + warm_jobs)

    async def close(self) -> None:
        await self.kill()
        if self.dsn:
            self._probe_path.unlink(missing_ok=True)
            await self.server.drop(self.database)
            self.dsn = ""

    async def execute(self, *statements: str) -> None:
        connection = await asyncpg.connect(self.dsn)
        try:
            for statement in statements:
                await connection.execute(statement, timeout=statement_s_max)
        except (asyncpg.PostgresError, TimeoutError) as error:
            raise NotMeasured(f"{type(error).__name__}: {error}") from error
        finally:
            await connection.close()

    async def unfinished(self) -> int:
        """How many jobs have not ended, as the database has it; 0 where the library gives no way to ask."""
        if not self.info["unfinished"]:
            return 0
        connection = await asyncpg.connect(self.dsn)
        try:
            return int(await connection.fetchval(self.info["unfinished"]))
        finally:
            await connection.close()

    async def until_none_unfinished(self) -> int:
        """Wait until the database says that all have ended; returns how many transactions that took."""
        deadline = now() + start_s_max
        looks = 1
        while left := await self.unfinished():
            if now() > deadline:
                raise NotMeasured(f"all jobs ran, but {left} are unfinished in the database {start_s_max:g} s later")
            looks += 1
            await asyncio.sleep(0.01)
        return looks

    async def copies(self, count: int) -> dict[str, str]:
        """SQL that copies a finished and a pending row so often."""
        sql: dict[str, str] = await self._role("copies", str(count))
        return sql

    # ------------------------------------------------------------------ its processes

    async def start_worker(self, purpose: str, number: int = 0) -> asyncio.subprocess.Process:
        with (self.folder / f"{self.name}.log").open("ab") as log:
            worker = await asyncio.create_subprocess_exec(
                self.python,
                *("-m", "tests.bench.peers.role", self.name),
                *("work", self.dsn, purpose, str(self.probe.path), str(number)),
                cwd=self.folder,
                env=self._environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.workers.append(worker)
        return worker

    async def warm(self, purpose: str, workers: int = 1) -> None:
        """Start workers and wait until they have done a few jobs, whose slots are the last ones."""
        for number in range(workers):
            await self.start_worker(purpose, number)
        first = self.probe.slots - warm_jobs
        await self.send("noop", warm_jobs, first=first)
        if not await self.until(lambda: self.probe.ended(first) == warm_jobs, within_s=start_s_max):
            raise NotMeasured(f"the first jobs did not end within {start_s_max:g} s")

    async def kill(self) -> None:
        """kill -9 of all workers and their children."""
        for worker in self.workers:
            await self.kill_one(worker)
        self.workers.clear()
        self._killed.clear()

    async def kill_one(self, worker: asyncio.subprocess.Process) -> None:
        self._killed.add(worker.pid)
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        await worker.wait()

    async def send(self, kind: Kind, count: int, *, mode: str = "one", first: int = 0, x: float = 0, **how: Any) -> Any:
        """Enqueue from a process of its own; returns what `role.send` says."""
        order = {"mode": mode, "kind": kind, "count": count, "first": first, "x": x, "producers": 1, **how}
        return await self._role("send", self.dsn, json.dumps(order), within_s=send_s_max)

    async def fill(self, kind: Kind, count: int, x: float = 0) -> None:
        """Enqueue many, as fast as the library's API allows."""
        if self.info["bulk"]:
            await self.send(kind, count, mode="bulk", x=x)
        else:
            await self.send(kind, count, mode="spread", x=x, producers=16)

    async def until(self, true: Callable[[], bool], within_s: float) -> bool:
        """Wait for what the probe shows; False: not in time. Raises `NotMeasured` when a worker has ended by itself."""
        deadline = now() + within_s
        while not true():
            if now() > deadline:
                return False
            for worker in self.workers:
                if worker.returncode is not None and worker.pid not in self._killed:
                    raise NotMeasured(f"the worker ended with {worker.returncode}: {self._log_end()}")
            await asyncio.sleep(0.003)
        return True

    async def until_started(self) -> None:
        if not await self.until(lambda: self.probe.started() > 0, within_s=start_s_max):
            raise NotMeasured(f"no job started within {start_s_max:g} s")

    def _log_end(self) -> str:
        return last_line((self.folder / f"{self.name}.log").read_bytes())

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(root)}

    async def _role(self, role: str, *arguments: str, within_s: float = start_s_max) -> Any:
        process = await asyncio.create_subprocess_exec(
            self.python,
            *("-m", "tests.bench.peers.role", self.name, role, *arguments),
            cwd=self.folder,
            env=self._environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(within_s):
                output, errors = await process.communicate()
        except TimeoutError:
            raise NotMeasured(f"{role} took more than {within_s:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise NotMeasured(f"{role}: {last_line(errors)}")
        return json.loads(output.decode().splitlines()[-1])
