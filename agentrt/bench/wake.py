"""How long from enqueue to running coroutine on an idle system, beside the same path by hand.

Both receivers are processes of their own and live through the whole run; blocks of sends alternate between them, so that
what the machine does meanwhile hits both alike.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from statistics import quantiles

from agentrt.bench.agents import noted
from agentrt.client import connect
from agentrt.config import database_variable
from agentrt.errors import StoreError
from agentrt.store.opening import open_store
from agentrt.store.postgres import by_hand

bench_schema = "agentrt_bench"
block = 50
warm_up = 10
gap_s = (0.005, 0.03)
receiver_start_s = 30.0


@dataclass(frozen=True, slots=True)
class WakeReport:
    """Milliseconds from just before the send to the first line of the coroutine (floor: to the claim's answer)."""

    samples: int
    p50_ms: float
    p99_ms: float
    floor_p50_ms: float
    floor_p99_ms: float

    @property
    def ratio(self) -> float:
        return self.p50_ms / self.floor_p50_ms

    def as_dict(self) -> dict[str, float]:
        return {**asdict(self), "ratio": round(self.ratio, 3)}


async def wake(url: str, samples: int, progress: Callable[[int], None]) -> WakeReport:
    """Measure. Uses schemas of its own, which are gone afterwards. Raises `StoreError` when a receiver does not start."""
    store = await open_store(url, bench_schema)
    try:
        await store.drop_schema()
        await store.migrate()
        sender = await by_hand.Sender.open(store.dsn)
        try:
            async with (
                _supervisor(url),
                _receiver_by_hand(store.dsn) as receiver,
                connect(store.dsn, schema=bench_schema),
            ):
                ours, floor = await _alternate(sender, receiver, samples, progress)
        finally:
            await sender.close()
    finally:
        await store.drop_schema()
        await store.close()
    return WakeReport(
        samples,
        *(round(value * 1000, 3) for seconds in (ours, floor) for value in (_at(seconds, 50), _at(seconds, 99))),
    )


async def _alternate(
    sender: by_hand.Sender, receiver: asyncio.StreamReader, samples: int, progress: Callable[[int], None]
) -> tuple[list[float], list[float]]:
    """Blocks of sends, one at a time, each awaited before the next. The first few of each kind are not counted."""
    ours: list[float] = []
    floor: list[float] = []
    while len(ours) < samples + warm_up:
        for _ in range(min(block, samples + warm_up - len(ours))):
            await asyncio.sleep(random.uniform(*gap_s))  # noqa: S311 - spreads the sends over the receivers' timers
            ours.append(await _ask())
        for _ in range(len(ours) - len(floor)):
            await asyncio.sleep(random.uniform(*gap_s))  # noqa: S311 - as above
            await sender.send()
            floor.append(float(await receiver.readline()))
        progress(len(ours))
    return ours[warm_up:], floor[warm_up:]


async def _ask() -> float:
    """One message whose sender waits for its end. Waiting is part of the send, as it touches no row afterwards."""
    return await noted.options(timeout_s=30).ask(time.monotonic())


def _at(seconds: list[float], percent: int) -> float:
    return quantiles(seconds, n=100, method="inclusive")[percent - 1]


@asynccontextmanager
async def _supervisor(url: str) -> AsyncIterator[None]:
    """A supervisor process with default settings."""
    command = [
        sys.executable,
        "-m",
        "agentrt",
        "run",
        "agentrt.bench.agents",
        "--schema",
        bench_schema,
        "--log-level",
        "info",
    ]
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, database_variable: url}, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        await _line_with(process.stderr, b"supervisor.started")
        async with asyncio.TaskGroup() as group:
            group.create_task(process.stderr.read())  # keeps the pipe from filling
            try:
                yield
            finally:
                await _end(process)
    finally:
        await _end(process)


@asynccontextmanager
async def _receiver_by_hand(dsn: str) -> AsyncIterator[asyncio.StreamReader]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agentrt", "bench", "receive-by-hand"),
        env={**os.environ, database_variable: dsn},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        await _line_with(process.stdout, b"listening")
        yield process.stdout
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):  # it has ended
        process.terminate()
    await process.wait()


async def _line_with(stream: asyncio.StreamReader, text: bytes) -> None:
    """Read lines until one holds `text`."""
    said = b""
    try:
        async with asyncio.timeout(receiver_start_s):
            while text not in (line := await stream.readline()):
                if not line:
                    break
                said = line
            else:
                return
    except TimeoutError:
        pass
    raise StoreError(
        f"A process of the measurement did not start: {said.decode(errors='replace').strip() or 'no output'}"
    )
