"""One run: the peers' environments, the metrics in turn, and a line for each result as it comes.

Repetitions alternate between the peers (A B C A B C), so that what the machine does meanwhile hits all alike.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.bench.peers.contestant import Contestant
from tests.bench.peers.environments import NotMeasured, libraries, prepare
from tests.bench.peers.measures import Sample, Sizes, single
from tests.bench.peers.results import Result, gather
from tests.bench.peers.server import Busy, Server
from tests.bench.peers.together import together

metrics = [*single, *together]
once = ("backlog", "pingpong")  # each has several measurements in one go


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked for."""

    dsn: str
    peers: list[str]
    metrics: list[str]
    sizes: Sizes
    repeats: int
    environments: Path
    folder: Path
    out: Path


class Run:
    """The state of a run: who takes part, and where results go."""

    def __init__(self, plan: Plan, server: Server, say: Callable[[str], None], advance: Callable[[str], None]) -> None:
        self.plan = plan
        self._server = server
        self._say = say
        self._advance = advance
        self._peers: list[Contestant] = []

    async def prepare(self, stack: AsyncExitStack) -> None:
        """Make environments, and meet all who can take part. `stack` takes away what is left of them."""
        for name in self.plan.peers:
            self._advance(f"environment of {name}")
            version = ""
            try:
                python, version = await prepare(name, self.plan.environments, self._say)
                peer = Contestant(name, version, python, self._server, self.plan.folder)
                await peer.meet()
            except NotMeasured as reason:
                for metric in self.plan.metrics:
                    self._keep([Result(name, version, metric, not_measured=str(reason))])
                continue
            stack.push_async_callback(peer.close)
            self._peers.append(peer)

    async def measure(self, metric: str) -> None:
        if metric in single:
            await self._one_by_one(metric)
        else:
            await self._at_once(metric)
        for peer in self._peers:
            await peer.close()

    async def _one_by_one(self, metric: str) -> None:
        samples: dict[str, list[Sample]] = {peer.name: [] for peer in self._peers}
        reasons: dict[str, str] = {}
        others: dict[str, float] = {}
        repeats = 1 if metric in once else self.plan.repeats
        for repeat in range(repeats):
            for peer in self._peers:
                self._advance(f"{metric} {repeat + 1}/{repeats} {peer.name}")
                if peer.name in reasons:
                    continue
                before = Busy.look(self._server)
                try:
                    samples[peer.name] += await single[metric](peer, self.plan.sizes)
                except NotMeasured as reason:
                    reasons[peer.name] = str(reason)
                await peer.kill()
                other = before.others_until(Busy.look(self._server))
                others[peer.name] = max(other, others.get(peer.name, 0.0))
        for peer in self._peers:
            said = self._said(peer, metric, others[peer.name])
            self._keep(gather(samples[peer.name], **said))
            if peer.name in reasons:
                self._keep([Result(not_measured=reasons[peer.name], **said)])

    async def _at_once(self, metric: str) -> None:
        self._advance(f"{metric}, all at once")
        before = Busy.look(self._server)
        outcomes = await together[metric](self._peers, self.plan.sizes)
        other = before.others_until(Busy.look(self._server))
        for peer in self._peers:
            said = self._said(peer, metric, other)
            outcome = outcomes.get(peer.name, NotMeasured("nothing was seen"))
            if isinstance(outcome, NotMeasured):
                self._keep([Result(not_measured=str(outcome), **said)])
            else:
                self._keep(gather(outcome, **said))

    def _said(self, peer: Contestant, metric: str, other_cpu: float) -> dict[str, Any]:
        about = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "server": self._server.version,
            "python": peer.info["python"],
            "cores": os.cpu_count(),
            "machine": platform.machine(),
        }
        return {"peer": peer.name, "version": peer.version, "metric": metric, "other_cpu": other_cpu, "about": about}

    def _keep(self, results: list[Result]) -> None:
        with self.plan.out.open("a") as file:
            file.writelines(f"{result.line()}\n" for result in results)
        for result in results:
            shown = {name: float(f"{seen.median:.4g}") for name, seen in result.numbers.items() if seen.values}
            said = f"not measured: {result.not_measured}" if result.not_measured else shown
            self._say(f"{result.metric} {result.case} {result.peer} {result.version}: {said}")

    def rounds(self) -> int:
        """How often `advance` is called at most."""
        peers = len(self.plan.peers)
        turns = {metric: 1 if metric in once else self.plan.repeats for metric in single}
        return peers + sum(turns[metric] * peers if metric in single else 1 for metric in self.plan.metrics)


async def run(plan: Plan, out: Console) -> None:
    """Measure all of the plan."""
    assert set(plan.peers) <= set(libraries)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=out
    )
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server.open(plan.dsn))
        stack.enter_context(bar)
        task = bar.add_task("")

        def advance(what: str) -> None:
            bar.update(task, advance=1, description=what)

        def say(text: str) -> None:
            bar.console.print(text, markup=False, highlight=False)

        measuring = Run(plan, server, say, advance)
        bar.update(task, total=measuring.rounds())
        await measuring.prepare(stack)
        for metric in plan.metrics:
            await measuring.measure(metric)
