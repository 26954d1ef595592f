"""The processes that a measurement starts, and what they take of the machine."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from agentrt.bench.run import MeasurementFailed, Run
from agentrt.config import database_variable
from agentrt.engine.minder import life_variable

start_s_max = 30.0
end_s_max = 10.0
_look_s = 0.05


@dataclass(frozen=True, slots=True)
class Child:
    """A process that ends with the block that started it, and when this process dies."""

    process: Process
    errors: BinaryIO
    what: str

    def require_alive(self) -> None:
        """Raises `MeasurementFailed` with its last words."""
        if self.process.returncode is not None:
            self.errors.seek(0)
            said = self.errors.read().decode(errors="replace").strip().splitlines()
            raise MeasurementFailed(
                f"{self.what} ended with code {self.process.returncode}: {said[-1] if said else 'it said nothing'}"
            )

    async def line(self, within_s: float) -> str:
        """The next line that it prints. Raises `MeasurementFailed`."""
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(within_s):
                line = await self.process.stdout.readline()
        except TimeoutError:
            raise MeasurementFailed(f"{self.what} said nothing for {within_s:g} s.") from None
        if not line:
            await self.process.wait()
            self.require_alive()
        return line.decode().strip()

    def tell(self, text: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text)


@dataclass(frozen=True, slots=True)
class Workers:
    """Supervisor processes."""

    children: tuple[Child, ...]

    def require_alive(self) -> None:
        for one in self.children:
            one.require_alive()

    def cpu_s(self) -> float | None:
        """Processor time so far, of all of them."""
        spent = [cpu_s(one.process.pid) for one in self.children]
        return None if None in spent else sum(part for part in spent if part is not None)


@asynccontextmanager
async def child(what: str, url: str, *arguments: str) -> AsyncIterator[Child]:
    """Start `python -m …` on a database. Settings of agentrt in the environment are not passed on: the defaults are measured."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AGENTRT_")}
    life_read, life_write = os.pipe()  # whose end tells a supervisor that we died
    with tempfile.TemporaryFile() as errors:
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", *arguments),
                env={**environ, database_variable: url, life_variable: str(life_read)},
                pass_fds=(life_read,),
                stdin=PIPE,
                stdout=PIPE,
                stderr=errors,
            )
            try:
                yield Child(process, errors, what)
            finally:
                await _end(process)
        finally:
            os.close(life_read)
            os.close(life_write)


async def _end(process: Process) -> None:
    with suppress(ProcessLookupError):  # it has ended
        process.terminate()
    try:
        async with asyncio.timeout(end_s_max):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


@asynccontextmanager
async def workers(run: Run, *options: str, processes: int = 1) -> AsyncIterator[Workers]:
    """`agentrt run` so many times, with default settings but for `options`; ready when the block begins.

    No minder keeps them: it would outlive this process, should that be killed, and measures nothing.
    """
    arguments = ("agentrt", "run", "agentrt.bench.agents", "--schema", run.schema, *options)
    async with AsyncExitStack() as stack:
        started = Workers(
            tuple(
                [
                    await stack.enter_async_context(child("The supervisor", run.url, *arguments))
                    for _ in range(processes)
                ]
            )
        )
        deadline = time.monotonic() + start_s_max
        while len(await run.store.supervisors()) < processes:
            started.require_alive()
            if time.monotonic() > deadline:
                raise MeasurementFailed(f"A supervisor was not ready within {start_s_max:g} s.")
            await asyncio.sleep(_look_s)
        yield started


def cpu_s(pid: int) -> float | None:
    """Processor time of a process so far, in seconds. None: this system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float | None:
    """Resident memory of a process, in units of 1,000,000 bytes. None: this system does not say."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return None
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)
