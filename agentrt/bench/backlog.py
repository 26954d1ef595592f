"""What a claim takes in front of a big backlog, beside the same on an empty table and by hand."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from uuid import uuid4

from agentrt.agent import send_many
from agentrt.bench.agents import noop
from agentrt.bench.report import Report, compared, milliseconds, ratio, shown
from agentrt.bench.run import MeasurementFailed, Run, seconds
from agentrt.config import Settings
from agentrt.engine.floors import Floors
from agentrt.model import Claimed, Finish, State, Wanted
from agentrt.store import Store
from agentrt.store.postgres.by_hand import Backlog, ByHand

_pass_batch = 100


@dataclass(frozen=True, slots=True)
class Sizes:
    """Rows of each kind; jobs that pass before the claims that are timed; how many of those, of so many jobs each."""

    ready: int
    finished: int
    delayed: int
    passing: int
    claims: int
    batch: int


@dataclass(slots=True)
class _Times:
    """Seconds of each claim, and of each end of what was claimed."""

    claims: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)


class _Worker:
    """Claims and ends jobs by the verbs of the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._id = uuid4()
        self._policy = noop.policy(Settings().lease_s)
        self._floors = Floors(store, [noop.name])
        self._claimed: Sequence[Claimed] = ()

    async def claim(self, count: int) -> None:
        floors = self._floors.of([noop.name])  # as a supervisor's claimer does
        self._claimed = await self._store.claim(Wanted(self._id, ((self._policy, count),), count, floors=floors))
        self._floors.seen(self._claimed)
        if len(self._claimed) != count:
            raise MeasurementFailed(f"A claim of {count} jobs brought {len(self._claimed)}.")

    async def end(self) -> None:
        done = [Finish(job.id, job.fence, State.succeeded, "null") for job in self._claimed]
        if len(accepted := await self._store.finish(done, keyed=False, limited=False)) != len(done):
            raise MeasurementFailed(
                f"Of {len(done)} ends {len(accepted)} were taken: the machine is slower than a lease."
            )


class _ByHand:
    """The same with the bare driver, in its own small table."""

    def __init__(self, by_hand: ByHand) -> None:
        self._by_hand = by_hand
        self._claimed: Sequence[int] = ()

    async def claim(self, count: int) -> None:
        self._claimed = await self._by_hand.claim(count)

    async def end(self) -> None:
        await self._by_hand.complete(self._claimed)


async def backlog(run: Run, *, sizes: Sizes, old_snapshot: bool) -> Report:
    """Claims of a batch in front of the backlog, in turns with some by hand on a small table.

    Half of those on an empty table come before and half after that: what the machine does meanwhile differs least so.
    """
    worker, empty = _Worker(run.store), _Times()
    async with run.client(), Backlog.opened(run.store.dsn, run.schema) as rows:
        await _on_empty_table(run, worker, sizes.claims // 2, sizes.batch, empty)
        total = sizes.ready + sizes.finished + sizes.delayed
        async for done in rows.fill(noop.name, ready=sizes.ready, finished=sizes.finished, delayed=sizes.delayed):
            run.progress("filling", done, total)
        async with rows.old_snapshot() if old_snapshot else nullcontext():
            await _let_pass(run, worker, sizes.passing)
            full, floor = await _in_front(run, worker, sizes)
        await rows.clear()
        await _on_empty_table(run, worker, sizes.claims - sizes.claims // 2, sizes.batch, empty)
    return _report(sizes, old_snapshot, full, empty, floor)


async def _on_empty_table(run: Run, worker: _Worker, claims: int, batch: int, times: _Times) -> None:
    """Each claim takes all that there is."""
    for number in range(claims):
        await send_many([noop.message(n) for n in range(batch)])
        await _timed(worker, batch, times)
        run.progress("empty table", number + 1, claims)


async def _timed(worker: _Worker | _ByHand, batch: int, times: _Times) -> None:
    times.claims.append(await seconds(worker.claim(batch)))
    times.ends.append(await seconds(worker.end()))


async def _let_pass(run: Run, worker: _Worker, jobs: int) -> None:
    """What leaves dead rows behind, which an old snapshot keeps from being cleaned up."""
    for start in range(0, jobs, _pass_batch):
        part = min(_pass_batch, jobs - start)
        await worker.claim(part)
        await worker.end()
        run.progress("jobs pass", start + part, jobs)


async def _in_front(run: Run, worker: _Worker, sizes: Sizes) -> tuple[_Times, _Times]:
    full, floor = _Times(), _Times()
    by_hand = _ByHand(run.by_hand)
    for number in range(sizes.claims):
        await _timed(worker, sizes.batch, full)
        await run.by_hand.insert_many(['{"n": 0}'] * sizes.batch)
        await _timed(by_hand, sizes.batch, floor)
        run.progress("in front of the backlog", number + 1, sizes.claims)
    return full, floor


def _report(sizes: Sizes, old_snapshot: bool, full: _Times, empty: _Times, floor: _Times) -> Report:
    p50, p99, empty_p50, empty_p99, floor_p50, floor_p99 = (
        milliseconds(times.claims, at) for times in (full, empty, floor) for at in (50, 99)
    )
    end, empty_end, floor_end = (milliseconds(times.ends, 50) for times in (full, empty, floor))
    kept = ", an old snapshot kept open" if old_snapshot else ""
    return Report(
        f"{sizes.claims} claims of {sizes.batch} jobs in front of {sizes.ready:,} ready, {sizes.finished:,} finished and"
        f" {sizes.delayed:,} delayed ones{kept}",
        {
            **asdict(sizes),
            "old_snapshot": old_snapshot,
            "p50_ms": p50,
            "p99_ms": p99,
            "empty_p50_ms": empty_p50,
            "empty_p99_ms": empty_p99,
            "ratio": ratio(p50, empty_p50),
            "floor_p50_ms": floor_p50,
            "floor_p99_ms": floor_p99,
            "finish_p50_ms": end,
            "empty_finish_p50_ms": empty_end,
            "floor_finish_p50_ms": floor_end,
        },
        [
            _row("claim, p50 ms", p50, empty_p50, floor_p50),
            _row("claim, p99 ms", p99, empty_p99, floor_p99),
            _row("finish, p50 ms", end, empty_end, floor_end),
        ],
        columns=("", "backlog", "empty table", "ratio", "by hand, small table"),
    )


def _row(label: str, full: float, empty: float, floor: float) -> tuple[str, ...]:
    return (*compared(label, full, empty), shown(floor))
