"""`/metrics`: what the supervisor counts, in the words of Prometheus (https://prometheus.io/docs/practices/naming/)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from agentrt.engine.stats import Cause
from agentrt.engine.supervisor import Supervisor
from agentrt.web.looks import Counts, unfinished

_outcomes = ("succeeded", "failed", "cancelled", "retried", "later", "released", "parked", "lost")


class Metrics:
    """A registry of its own, so that what the agents of this process register stays theirs."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._collector = _SupervisorCollector(supervisor)
        self._registry = CollectorRegistry()
        self._registry.register(self._collector)

    def text(self, accept: str, counts: Counts | None, open_decisions: int | None) -> tuple[bytes, str]:
        """The body and its content type, in the format that the scraper accepts. What is None is missing from it."""
        self._collector.counts = counts
        self._collector.open_decisions = open_decisions
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _SupervisorCollector(Collector):
    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self.counts: Counts | None = None
        self.open_decisions: int | None = None

    def collect(self) -> Iterator[Metric]:
        supervisor, stats = self._supervisor, self._supervisor.stats
        causes = get_args(Cause)
        yield _counter("claims", "Claim statements, by what made the claimer look.", "cause", causes, stats.claims)
        yield _counter(
            "claimed_jobs", "Jobs claimed, by the cause of the claim that found them.", "cause", causes, stats.claimed
        )
        yield _counter("outcomes", "Attempts that ended, by how.", "outcome", _outcomes, stats.outcomes)
        yield CounterMetricFamily("agentrt_swept_jobs", "Jobs taken back because their lease ran out.", stats.swept)
        yield CounterMetricFamily("agentrt_loop_stalls", "Times that an agent blocked the event loop.", stats.stalls)
        yield _counter(
            "loop_restarts", "Loops of the supervisor that died and were started again.", "loop", (), stats.restarts
        )
        yield GaugeMetricFamily("agentrt_ready", "1 while /readyz answers 200.", int(supervisor.health()["ok"]))
        yield GaugeMetricFamily("agentrt_running_jobs", "Jobs that this process runs now.", supervisor.running_jobs)
        yield GaugeMetricFamily("agentrt_slots", "Jobs that this process runs at most.", supervisor.slots)
        if self.counts is not None:
            jobs = GaugeMetricFamily(
                "agentrt_unfinished_jobs", "Jobs of the whole database that have not ended.", labels=["agent", "state"]
            )
            for (agent, state), count in unfinished(self.counts).items():
                jobs.add_metric([agent, state], count)
            yield jobs
        if self.open_decisions is not None:
            yield GaugeMetricFamily(
                "agentrt_decisions_open", "Questions of the whole database that wait for a person.", self.open_decisions
            )


def _counter(name: str, text: str, label: str, known: Iterable[str], counted: Mapping[str, int]) -> CounterMetricFamily:
    """One series a label value; those that are known beforehand start at 0, or their first rise would not be seen."""
    family = CounterMetricFamily(f"agentrt_{name}", text, labels=[label])
    for value in dict.fromkeys([*known, *counted]):
        family.add_metric([value], counted.get(value, 0))
    return family
