"""What a tree of jobs may use: spending is reported by steps, summed in the database, and refused when nothing is left."""

from __future__ import annotations

import contextvars
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, cast

import structlog

from agentrt import codec
from agentrt.context import Attempt, running, through_outages
from agentrt.durable.branch import Branch
from agentrt.errors import BudgetExceeded, StoreUnavailable, UsageError
from agentrt.limits import require_whole, require_within
from agentrt.model import StepRecord, StepState

log = structlog.get_logger("agentrt.budget")
_usd_max = 1e9
_tokens_max = 10**12


@dataclass(slots=True)
class Spent:
    """What one try of a step has reported."""

    usd: Decimal = Decimal(0)
    tokens: int = 0

    def on(self, record: StepRecord) -> StepRecord:
        """The record with what was spent, so that both are stored by one statement. A reservation around it pays first."""
        if not self.usd and not self.tokens:
            return record
        held = _reserved.get() or Spent()
        usd, tokens = min(held.usd, self.usd), min(held.tokens, self.tokens)
        held.usd -= usd
        held.tokens -= tokens
        return replace(record, usd=self.usd, tokens=self.tokens, covered_usd=usd, covered_tokens=tokens)


_reserved: contextvars.ContextVar[Spent | None] = contextvars.ContextVar("agentrt_reserved", default=None)
_spent: contextvars.ContextVar[Spent | None] = contextvars.ContextVar("agentrt_spent", default=None)


@contextmanager
def spending() -> Iterator[Spent]:
    """Collect what `spend` reports inside, also from threads that are started there."""
    spent = Spent()
    token = _spent.set(spent)
    try:
        yield spent
    finally:
        _spent.reset(token)


def spend(*, usd: float | Decimal = 0, tokens: int = 0) -> None:
    """Report what this step has used, in dollars and tokens; it is stored with the step's outcome, failed tries included.

    When that goes beyond a budget above it, the step raises `BudgetExceeded` once its outcome is stored, or a person is asked.
    Outside of a job nothing is counted.

    Raises `UsageError`: the call is not inside a step, or a number is negative.
    """
    require_within("usd", cast("float", usd), 0, _usd_max)
    require_whole("tokens", tokens, 0, _tokens_max)
    spent = _spent.get()
    if spent is None:
        if running.get() is not None:
            raise UsageError(
                "agentrt.spend() was called outside of a step. Call it in the function that the step runs."
            )
        return
    spent.usd += Decimal(str(usd))
    spent.tokens += tokens


@asynccontextmanager
async def reserve(*, usd: float | Decimal = 0, tokens: int = 0) -> AsyncIterator[None]:
    """Set aside what the block may cost at most, so that jobs that run at the same time cannot overdraw a budget together.

    What steps inside report with `spend` is taken from it; the block ends by giving the rest back. If the process dies inside, it
    stays booked: the money may be gone.

    Raises `BudgetExceeded`: not enough is left; nothing was set aside and the block is not entered.
    """
    require_within("usd", cast("float", usd), 0, _usd_max)
    require_whole("tokens", tokens, 0, _tokens_max)
    attempt = running.get()
    if attempt is None:
        yield
        return
    attempt.require_going()
    dollars = Decimal(str(usd))
    questions = questions_of(attempt.branches.here().step_id("reserve"))
    while (exceeded := await attempt.store.reserve(attempt.owner, dollars, tokens)) is not None:
        await exceed(attempt, exceeded, questions)
    held = Spent(dollars, tokens)
    token = _reserved.set(held)
    try:
        yield
    finally:
        _reserved.reset(token)
        try:
            await attempt.store.settle(attempt.job.id, -held.usd, -held.tokens)
        except StoreUnavailable as error:  # not told twice: it may have been done
            log.warning("reservation.not_settled", job_id=attempt.job.id, error=str(error), meaning="it stays booked")


async def raise_when_exceeded(attempt: Attempt, state: StepState, step_id: str) -> None:
    """After a step was stored: its spending may have used up a budget."""
    if state.exceeded is not None:
        await exceed(attempt, state.exceeded, questions_of(step_id))


async def ask_again(attempt: Attempt, step_id: str) -> None:
    """A step that is known: when its spending led to a question, the answer counts for the rerun, too."""
    questions = questions_of(step_id)
    if f"{questions.path}budget#0" in attempt.job.steps:
        exceeded = await through_outages(lambda: attempt.store.reserve(attempt.owner, Decimal(0), 0))
        if exceeded is not None:  # else more was granted already
            await exceed(attempt, exceeded, questions)


def questions_of(step_id: str) -> Branch:
    """Where the questions are counted that a step's cost leads to: apart, for a rerun may have none."""
    return Branch(f"{step_id}/budget/")


async def exceed(attempt: Attempt, account_text: str, questions: Branch) -> None:
    """A budget is used up: raise `BudgetExceeded`, or return after a person has granted more."""
    account = cast("dict[str, Any]", codec.parse(account_text))
    text = _say(account)
    if not account["ask"] or account.get("hops"):
        raise BudgetExceeded(text)
    from agentrt.durable.decision import (
        decide_as,
    )  # the one circle: a decision is a step, whose spending may need a decision

    step_id = f"{questions.path}budget#{questions.counts.get('budget', 0)}"
    with attempt.branches.inside(questions):
        answer = await decide_as(attempt, "budget", f"{text} Grant as much again?", ("continue", "stop"), subject=None)
    if answer.option != "continue":
        raise BudgetExceeded(f"{text} {answer.by or 'Nobody'} said stop.")
    await through_outages(lambda: attempt.store.extend_budget(account["account"], attempt.job.id, step_id))


def _say(account: dict[str, Any]) -> str:
    parts = [
        f"{account[what]} of {account[f'{what}_max']} {unit}"
        for what, unit in (("usd", "USD"), ("tokens", "tokens"), ("jobs", "jobs"))
        if account[f"{what}_max"] is not None
    ]
    if account.get("hops"):
        parts.append("a message further down the tree than its hops allow")
    return f"The budget of job {account['account']} is used up: {', '.join(parts)}."
