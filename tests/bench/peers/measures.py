"""The measurements of one peer at a time. Each makes its own database and returns what it saw, a sample a case."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any

from tests.bench.peers.contestant import Contestant
from tests.bench.peers.environments import NotMeasured
from tests.bench.peers.probe import now
from tests.bench.peers.server import cpu_s

backlog_skipped = 1_000  # what a worker takes with its first claim is no measure of the next ones
settle_s = 0.4  # so long after a kill do its backends count their last transactions


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything."""

    serial: int = 600
    spread: int = 1_500
    bulk: int = 6_000
    drain: int = 40_000
    drain_s: float = 6.0  # the longest a drain is watched; then the jobs that ended so far count
    paced: int = 80
    paced_gap_s: float = 0.04
    chains: int = 3
    hops: int = 90  # agentrt refuses more than 100
    steps: int = 1_000
    workflows: int = 200
    waits_s: float = 12.0  # the longest wait for a chain or a workflow
    idle_s: float = 30.0
    crash_s: float = 130.0
    backlog: int = 500_000
    backlog_jobs: int = 5_000


quick = Sizes(
    serial=200, spread=400, bulk=2_000, drain=3_000, drain_s=2.5, paced=30, paced_gap_s=0.04, chains=1, steps=200,
    workflows=50, waits_s=5.0, idle_s=10.0, crash_s=45.0, backlog=12_000, backlog_jobs=2_000,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sample:
    """What one measurement of a case saw: numbers by name."""

    case: str
    numbers: dict[str, float]
    settings: dict[str, Any] = field(default_factory=dict)
    note: str = ""


Measure = Callable[[Contestant, Sizes], Awaitable[list[Sample]]]


async def enqueue(peer: Contestant, sizes: Sizes) -> list[Sample]:
    """Jobs a second that one awaits after the other, that 50 producers await, and that the bulk API stores."""
    await peer.fresh(0)
    ways = [("serial", "one", sizes.serial, 1), ("spread", "spread", sizes.spread, 50)]
    if peer.info["bulk"]:
        ways.append(("bulk", "bulk", sizes.bulk, 1))
    samples = []
    for case, mode, count, producers in ways:
        took = await peer.send("noop", count, mode=mode, producers=producers)
        samples.append(Sample(case, {"jobs_per_s": count / took["seconds"]}))
    return samples


async def drain(peer: Contestant, sizes: Sizes) -> list[Sample]:
    """Jobs a second of one worker through jobs that do nothing and are there when it starts, and what they cost."""
    samples = []
    for case, purpose in peer.purposes("throughput").items():
        count = min(sizes.drain, peer.info["jobs_max"])
        if case == "default" and len(peer.purposes("throughput")) > 1:
            count = min(count, 3_000)  # as it comes, many take a few hundred a second
        await peer.fresh(count)
        await peer.fill("noop", count)
        samples.append(Sample(case, await _drain(peer, purpose, count, sizes.drain_s), peer.settings(purpose)))
    return samples


async def _drain(peer: Contestant, purpose: str, count: int, within_s: float) -> dict[str, float]:
    """From the first job's start until the database holds no unfinished one, or until the time is over."""
    server, probe = peer.server, peer.probe
    await peer.execute("vacuum analyze")  # as a table that has lived: else plans hang on when autovacuum comes
    await server.checkpoint()
    transactions = await server.transactions(peer.database)
    wal = await server.wal_bytes()
    worker = await peer.start_worker(purpose)
    await peer.until_started()
    worker_s, server_s = cpu_s(worker.pid), cpu_s(server.pid)
    looks = 0
    if await peer.until(lambda: probe.ended() >= count, within_s):
        looks = await peer.until_none_unfinished()
    jobs = probe.ended()
    seconds = now() - probe.first_start()
    worker_s, server_s = cpu_s(worker.pid) - worker_s, cpu_s(server.pid) - server_s
    wal = await server.wal_bytes() - wal
    await peer.kill()
    await asyncio.sleep(settle_s)
    return {
        "jobs_per_s": jobs / seconds,
        "jobs": jobs,
        "worker_ms_per_job": 1000 * worker_s / jobs,
        "server_ms_per_job": 1000 * server_s / jobs,
        "transactions_per_job": (await server.transactions(peer.database) - transactions - looks) / jobs,
        "wal_bytes_per_job": wal / jobs,
        "ran_again": probe.again(count),
        "not_run": count - jobs,
    }


async def latency(peer: Contestant, sizes: Sizes) -> list[Sample]:
    """Milliseconds from just before a send to the first line of its job, with a worker that has nothing else to do."""
    samples = []
    for case, purpose in peer.purposes("latency").items():
        await peer.fresh(sizes.paced)
        await peer.warm(purpose)
        sent = await peer.send("noop", sizes.paced, mode="paced", gap_s=sizes.paced_gap_s)
        if not await peer.until(lambda: peer.probe.ended(0, sizes.paced) == sizes.paced, sizes.waits_s):
            raise NotMeasured(f"not all of {sizes.paced} single jobs ended within {sizes.waits_s:g} s")
        await peer.kill()
        waits = [1000 * (peer.probe.started_at(slot) - at) for slot, at in enumerate(sent["sent_at"])]
        cuts = quantiles(waits, n=100, method="inclusive")
        numbers = {
            "p50_ms": cuts[49],
            "p95_ms": cuts[94],
            "p99_ms": cuts[98],
            "ran_again": peer.probe.again(sizes.paced),
        }
        samples.append(Sample(case, numbers, peer.settings(purpose)))
    return samples


async def pingpong(peer: Contestant, sizes: Sizes) -> list[Sample]:
    """Hops a second: each job sends the next one from inside."""
    purpose = peer.purpose("pingpong")
    await peer.fresh(sizes.chains * (sizes.hops + 1) + 1)
    await peer.warm(purpose)
    samples = []
    for chain in range(sizes.chains):
        first, last = chain * (sizes.hops + 1) + 1, (chain + 1) * (sizes.hops + 1)
        await peer.send("ping", 1, first=first, x=sizes.hops + 1)
        whole = await peer.until(lambda: peer.probe.starts(last) > 0, sizes.waits_s)  # noqa: B023 - awaited in this round
        hops = sizes.hops if whole else peer.probe.ended(first, sizes.hops + 1)
        seconds = (peer.probe.started_at(last) if whole else now()) - peer.probe.started_at(first)
        samples.append(Sample("best", {"hops_per_s": hops / seconds}, peer.settings(purpose)))
        if not whole:
            break
    await peer.kill()
    return samples


async def steps(peer: Contestant, sizes: Sizes) -> list[Sample]:
    """Durable steps a second of one workflow, and workflows of five steps a second."""
    if not peer.info["steps"]:
        raise NotMeasured("it has no durable steps")
    purpose = peer.purpose("latency")
    await peer.fresh(sizes.steps)
    await peer.warm(purpose)
    await peer.send("steps", 1, x=sizes.steps)
    await peer.until(lambda: peer.probe.ended(0, sizes.steps) == sizes.steps, sizes.waits_s)
    done = peer.probe.ended(0, sizes.steps)
    if done < 2:
        raise NotMeasured(f"{done} steps within {sizes.waits_s:g} s")
    rate = (done - 1) / (peer.probe.ended_at(done - 1) - peer.probe.started_at(0))
    await peer.kill()
    samples = [Sample("one", {"steps_per_s": rate}, peer.settings(purpose))]
    purpose = peer.purpose("throughput")
    await peer.fresh(5 * sizes.workflows)
    await peer.fill("steps", sizes.workflows, x=5)
    seen = await _drain(peer, purpose, 5 * sizes.workflows, sizes.waits_s)
    return [*samples, Sample("many", {"workflows_per_s": seen["jobs_per_s"] / 5}, peer.settings(purpose))]


async def backlog(peer: Contestant, sizes: Sizes) -> list[Sample]:
    """Jobs a second of one worker, with many pending before and many finished behind them. Rows are copied by SQL."""
    sql = await peer.copies(sizes.backlog)
    if not sql["pending"]:
        raise NotMeasured("its storage is no table whose rows can be copied")
    purpose = peer.purpose("backlog")
    await peer.fresh(0)
    await peer.warm(purpose)
    await asyncio.sleep(2 * settle_s + 1)  # some write ends once a second
    await peer.kill()
    await peer.execute(sql["finished"])
    await peer.send("noop", 1)
    await peer.execute(sql["pending"], "vacuum analyze")
    samples = []
    for _ in range(2):  # the second finds the rows that the first one's killed worker held
        peer.probe.reset()
        await peer.server.checkpoint()
        await peer.start_worker(purpose)
        await peer.until_started()
        await peer.until(lambda: peer.probe.hits() >= backlog_skipped, sizes.waits_s)
        hits, began = peer.probe.hits(), now()
        await peer.until(lambda: peer.probe.hits() >= hits + sizes.backlog_jobs, sizes.waits_s)  # noqa: B023 - awaited here
        rate = (peer.probe.hits() - hits) / (now() - began)
        await peer.kill()
        await asyncio.sleep(settle_s)
        samples.append(Sample("best", {"jobs_per_s": rate}, peer.settings(purpose)))
    return samples


single: dict[str, Measure] = {
    "enqueue": enqueue,
    "drain": drain,
    "latency": latency,
    "pingpong": pingpong,
    "steps": steps,
    "backlog": backlog,
}
