"""The measurements of all peers at once, because they mostly wait: what a worker with nothing to do costs, and a kill -9."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tests.bench.peers.contestant import Contestant, start_s_max
from tests.bench.peers.environments import NotMeasured
from tests.bench.peers.measures import Sample, Sizes
from tests.bench.peers.probe import now
from tests.bench.peers.server import cpu_s

T = TypeVar("T")
Outcomes = dict[str, list[Sample] | NotMeasured]
Together = Callable[[list[Contestant], Sizes], Awaitable[Outcomes]]
calm_s = 12.0  # an idle backend tells its last transactions within ten seconds
jobs = 50
job_s = 2.0
kill_after_s = 1.0
write_back_s = 2.0  # after a job has run, before its row has to say so


async def idle(peers: list[Contestant], sizes: Sizes) -> Outcomes:
    """Transactions a second, and the processor time of the worker and of the server's processes for it."""
    outcomes: Outcomes = {}
    for case in ("default", "best"):
        calm = await _each(peers, lambda peer: _start_idle(peer, case), outcomes)  # noqa: B023 - awaited in this round
        await asyncio.sleep(calm_s if calm else 0)
        before = {name: await _spent(peer) for name, peer in calm.items()}
        await asyncio.sleep(sizes.idle_s if calm else 0)
        for name, peer in calm.items():
            spent = await _spent(peer)
            seconds, transactions, worker_s, server_s = (
                later - sooner for later, sooner in zip(spent, before[name], strict=True)
            )
            numbers = {
                "transactions_per_s": transactions / seconds,
                "worker_ms_per_s": 1000 * worker_s / seconds,
                "server_ms_per_s": 1000 * server_s / seconds,
            }
            _add(outcomes, name, Sample(case, numbers, peer.settings(peer.purposes("latency")[case])))
        for peer in calm.values():
            await peer.kill()
    return outcomes


async def _start_idle(peer: Contestant, case: str) -> Contestant | None:
    purpose = peer.purposes("latency").get(case)
    if purpose is None:
        return None
    await peer.fresh(0)
    await peer.warm(purpose)
    return peer


async def _spent(peer: Contestant) -> tuple[float, float, float, float]:
    """The moment, and what was spent until then."""
    backends = await peer.server.backends(peer.database)
    return (
        now(),
        await peer.server.transactions(peer.database),
        sum(cpu_s(worker.pid) for worker in peer.workers),
        sum(cpu_s(pid) for pid in backends),
    )


async def crash(peers: list[Contestant], sizes: Sizes) -> Outcomes:
    """Seconds from a kill -9 of the busier one of two workers until all of 50 jobs of two seconds have run."""
    outcomes: Outcomes = {}
    killed = await _each(peers, _kill_busier, outcomes)

    async def recover(peer: Contestant) -> None:
        held, at = killed[peer.name]
        try:
            ended = await peer.until(lambda: peer.probe.ended(0, jobs) == jobs, at + sizes.crash_s - now())
        except NotMeasured as reason:
            outcomes[peer.name] = reason
            return
        last = max(peer.probe.ended_at(slot) for slot in range(jobs))
        recovered = {"recovered_s": last - at} if ended else {}
        numbers = {
            "held": held,
            "ran_again": peer.probe.again(jobs),
            "not_run": jobs - peer.probe.ended(0, jobs),
        }
        await asyncio.sleep(write_back_s)
        numbers["left"] = await peer.unfinished()
        note = "" if ended else f"not within {sizes.crash_s:g} s"
        _add(outcomes, peer.name, Sample("kill", {**recovered, **numbers}, peer.settings(peer.purpose("crash")), note))
        await peer.kill()

    await asyncio.gather(*(recover(peer) for peer in peers if peer.name in killed))
    return outcomes


async def _kill_busier(peer: Contestant) -> tuple[int, float]:
    """Returns how many jobs the killed worker was running, and when."""
    await peer.fresh(jobs)
    await peer.warm(peer.purpose("crash"), workers=2)
    before = peer.probe.started()
    await peer.fill("sleep", jobs, x=job_s)
    await peer.until(lambda: peer.probe.started() > before, start_s_max)
    await asyncio.sleep(kill_after_s)
    running = [peer.probe.running_in(number, jobs) for number in range(2)]
    await peer.kill_one(peer.workers[running.index(max(running))])
    return max(running), now()


async def _each(
    peers: list[Contestant], begin: Callable[[Contestant], Awaitable[T | None]], outcomes: Outcomes
) -> dict[str, T]:
    """One after the other, without those that failed here or before."""
    begun: dict[str, T] = {}
    for peer in peers:
        if isinstance(outcomes.get(peer.name), NotMeasured):
            continue
        try:
            found = await begin(peer)
        except NotMeasured as reason:
            outcomes[peer.name] = reason
            await peer.kill()
            continue
        if found is not None:
            begun[peer.name] = found
    return begun


def _add(outcomes: Outcomes, name: str, sample: Sample) -> None:
    found = outcomes.setdefault(name, [])
    assert isinstance(found, list)
    found.append(sample)


together: dict[str, Together] = {"idle": idle, "crash": crash}
