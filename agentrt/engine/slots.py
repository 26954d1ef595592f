"""The slots of a process: how many jobs it runs at a time, in all and of each agent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from agentrt.model import AgentPolicy, Wanted


class Slots:
    """A slot is taken by a job that runs, or set aside for what a claim on its way may bring."""

    def __init__(self, count: int, policies: Sequence[AgentPolicy]) -> None:
        self._count = count
        self._policies = {policy.name: policy for policy in policies}
        self._taken = 0
        self._taken_of: Counter[str] = Counter()
        self._reserved = 0
        self._reserved_of: Counter[str] = Counter()
        self._leaving: Counter[str] = Counter()  # by agent: jobs that end in the statements of such claims
        self.on_free: Callable[[str], None] = lambda _agent: None

    def change(self, agent: str, change: int) -> None:
        """Jobs of this agent take slots (+) or give them back (-)."""
        self._taken_of[agent] += change
        self._taken += change
        if change < 0:
            self.on_free(agent)

    def reserve(
        self, leaving: Counter[str], most: int, only: str | None = None
    ) -> tuple[list[tuple[AgentPolicy, int]], int]:
        """For which agents how many jobs may be claimed, and how many in all: they are set aside until `release`.

        `leaving`: jobs by agent whose slots become free in the same statement. `only`: of this agent alone.
        """
        left = self._leaving + leaving
        total = min(self._count - self._taken - self._reserved + left.total(), most)
        if total <= 0:
            return [], 0
        agents = []
        for policy in self._policies.values() if only is None else [self._policies[only]]:
            room = total
            if policy.concurrency is not None:
                room = min(total, self._room_of(policy.name, policy.concurrency) + left[policy.name])
            if room > 0:
                agents.append((policy, room))
        if not agents:
            return [], 0
        total = min(total, sum(room for _, room in agents))
        self._reserved += total
        for policy, room in agents:
            self._reserved_of[policy.name] += room
        self._leaving = left
        return agents, total

    def release(self, wanted: Wanted, leaving: Counter[str]) -> None:
        """Give back what `reserve` set aside; the jobs that were to leave have given back theirs, or stay."""
        self._leaving -= leaving
        self._reserved -= wanted.total
        for policy, room in wanted.agents:
            self._reserved_of[policy.name] -= room

    def has_room(self, agent: str | None = None) -> bool:
        """Whether a slot is free that no claim on its way was promised, for any agent or for this one.

        Those of jobs that leave are not counted as free: what ends them fills them.
        """
        if self._taken + self._reserved >= self._count:
            return False
        concurrency = None if agent is None else self._policies[agent].concurrency
        return agent is None or concurrency is None or self._room_of(agent, concurrency) > 0

    def _room_of(self, agent: str, concurrency: int) -> int:
        return concurrency - self._taken_of[agent] - self._reserved_of[agent]
