"""The verbs of a running attempt on PostgreSQL: steps, waits, decisions, budgets."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import cached_property
from typing import Any

from agentrt.model import Budget, JobRow, NewQuestion, Sender, StepMark, StepRecord, StepState
from agentrt.store.postgres.connections import Connections
from agentrt.store.postgres.group import Group
from agentrt.store.postgres.rows import lost, owned, recorded_columns, step_state


class DurableVerbs(Connections):
    @cached_property
    def _steps(self) -> Group[tuple[Sender, StepRecord], JobRow]:
        return Group(self._record_all, lambda step: len(step[1].output or "") + len(step[1].failure or ""))

    async def record(self, owner: Sender, record: StepRecord, connection: Any = None) -> StepState:
        """Store a step; returns what is stored now. On `connection` it is part of that transaction.

        Steps of concurrent jobs share a statement, but for those that cost money: what these have used up is said to each alone.
        Raises `LeaseLost` when the attempt no longer owns the job.
        """
        step = (owner, record)
        if connection is None and record.usd is None and record.tokens is None:
            row = await self._steps.put(step)
        else:
            (row,) = await self._record_all([step], connection)
        return step_state(owned(row, owner), record)

    async def _record_all(self, steps: Sequence[tuple[Sender, StepRecord]], connection: Any = None) -> list[JobRow]:
        return [dict(row) for row in await self._run("record", connection, recorded_columns(steps))]

    async def await_job(self, owner: Sender, mark: StepMark, child: int, timeout_s: float | None) -> StepState | None:
        """Wait, as a step, for the end of a job. None: there is no such job. Raises `LeaseLost`."""
        values = (owner.job_id, owner.fence, mark.id, child, timeout_s, mark.fingerprint, mark.place)
        (row,) = await self._rows("await_job", *values)
        return None if owned(row, owner)["child"] is None else step_state(row, StepRecord(mark, "ask"))

    async def answers(self, waits: Sequence[tuple[int, str]]) -> list[tuple[int, str, StepState]]:
        rows = await self._rows("answers", [job_id for job_id, _ in waits], [step for _, step in waits])
        return [(row["job_id"], row["step"], StepState("ask", True, row["output"], row["failure"])) for row in rows]

    # -------------------------------------------------------------- decisions

    async def open_decision(self, owner: Sender, mark: StepMark, question: NewQuestion) -> tuple[int, StepState]:
        """Ask a question as a step: its id, and how it stands. Raises `LeaseLost`."""
        (row,) = await self._rows(
            "open_decision",
            *(owner.job_id, owner.fence, mark.id, mark.fingerprint, mark.place, question.text, question.options),
            *(question.who, question.default, question.within_s),
        )
        return owned(row, owner)["id"], step_state(row, StepRecord(mark, "decide"))

    async def decide(self, decision_id: int, option: str, by: str) -> JobRow | None:
        rows = await self._rows("decide", decision_id, option, by)
        return rows[0] if rows else None

    async def decisions(self, decision_id: int | None = None, limit: int = 100) -> list[JobRow]:
        """The open questions, oldest first; or the one of this id, whatever has become of it."""
        if decision_id is not None:
            return await self._rows("decision", decision_id)
        return await self._rows("decisions", limit)

    async def count_decisions(self) -> int:
        """How many questions are open."""
        return int(await self._value("count_decisions") or 0)

    # -------------------------------------------------------------- budgets

    async def open_budget(self, owner: Sender, budget: Budget) -> tuple[int, float | None]:
        """Give a running job its budget, once: the account, and the seconds that are left of its time."""
        usd = None if budget.usd is None else str(Decimal(str(budget.usd)))
        limits = (budget.tokens, budget.jobs, budget.hops, budget.wall_s, budget.on_exceeded == "decide")
        rows = await self._rows("open_budget", owner.job_id, owner.fence, usd, *limits)
        if not rows:
            raise lost(owner)
        return rows[0]["account"], rows[0]["deadline_s"]

    async def reserve(self, owner: Sender, usd: Decimal, tokens: int) -> str | None:
        """Set aside; the text of the account that has not enough, when nothing was. Raises `LeaseLost`."""
        (row,) = await self._rows("reserve", owner.job_id, owner.fence, str(usd), tokens)
        exceeded: str | None = owned(row, owner)["exceeded"]
        return exceeded

    async def settle(self, job_id: int, usd: Decimal, tokens: int) -> str | None:
        return await self._value("settle", job_id, str(usd), tokens)

    async def extend_budget(self, account: int, job_id: int, step: str) -> None:
        await self._rows("extend_budget", account, job_id, step)
