"""Slots: whatever claims and ends are under way, no more jobs run than there are slots, and no slot is left out."""

from __future__ import annotations

from collections import Counter
from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st

from agentrt.engine.slots import Slots
from agentrt.model import AgentPolicy, Wanted

count = 6
concurrency = {"wide": None, "narrow": 2}
policies = [AgentPolicy(name, most, None, 3, 15.0) for name, most in concurrency.items()]


class Engine:
    """What the claimer, the committer and the runner do to the slots, with claims that bring what they are told to."""

    def __init__(self) -> None:
        self.slots = Slots(count, policies)
        self.running: Counter[str] = Counter()
        self.leaving: Counter[str] = Counter()
        self.looks: list[tuple[Wanted, Counter[str]]] = []

    def look(self, ends: int) -> None:
        """End some of the jobs that run, and claim in the same statement, if there is anything to claim."""
        ending = Counter(list((self.running - self.leaving).elements())[:ends])
        agents, total = self.slots.reserve(ending, count)
        if total:
            self.leaving += ending
            self.looks.append((Wanted(uuid4(), tuple(agents), total), ending))

    def answer(self, which: int, wide_first: bool) -> None:
        """The answer to one that is under way: it claimed all that it was allowed to."""
        wanted, ending = self.looks.pop(which % len(self.looks))
        for agent in ending.elements():
            self.slots.change(agent, -1)
        self.running -= ending
        self.leaving -= ending
        self.slots.release(wanted, ending)
        left = wanted.total
        for policy, room in sorted(wanted.agents, key=lambda agent: agent[0].name, reverse=wide_first):
            for _ in range(min(room, left)):
                self.slots.change(policy.name, +1)
                self.running[policy.name] += 1
                left -= 1

    def fail(self, which: int) -> None:
        wanted, ending = self.looks.pop(which % len(self.looks))
        self.leaving -= ending
        self.slots.release(wanted, ending)

    def promised(self) -> int:
        return self.running.total() - self.leaving.total() + sum(wanted.total for wanted, _ in self.looks)


moves = st.lists(
    st.tuples(st.sampled_from(["look", "look", "answer", "fail"]), st.integers(0, count), st.booleans()), max_size=40
)


@given(moves)
def test_slots_are_neither_exceeded_nor_left_out(moves: list[tuple[str, int, bool]]) -> None:
    engine = Engine()
    for move, number, wide_first in moves:
        if move == "look":
            engine.look(number)
            assert engine.promised() == count  # an agent without a limit of its own takes all that is left
        elif engine.looks and move == "answer":
            engine.answer(number, wide_first)
        elif engine.looks:
            engine.fail(number)
        assert engine.promised() <= count
        assert engine.running.total() <= count
        assert engine.running["narrow"] <= 2
    while engine.looks:
        engine.fail(0)
    assert engine.slots.has_room() == (engine.running.total() < count)
    assert engine.slots.has_room("narrow") == (engine.running.total() < count and engine.running["narrow"] < 2)
