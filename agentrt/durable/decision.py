"""Decisions: a question that people answer, in their own time. The first valid answer is the outcome of the step that asked."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast
from urllib.parse import quote

from agentrt import codec
from agentrt.context import Attempt, running, through_outages
from agentrt.durable import fault
from agentrt.durable.branch import Branch
from agentrt.durable.step import step
from agentrt.errors import ConfigError, DecisionExpired, UsageError
from agentrt.limits import delay_s_max, options_max, require_name, require_within
from agentrt.model import NewQuestion, StepRecord

secret_variable = "AGENTRT_SECRET"  # noqa: S105 - the name of a variable, not a secret
public_url_variable = "AGENTRT_PUBLIC_URL"
question_chars_max = 4_000
_secret_chars_min = 16


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer: which option, by whom (None: nobody in time, this is the default), when."""

    option: str
    by: str | None
    at: datetime


@dataclass(frozen=True, slots=True)
class Question:
    """A question that is open: what an announcement is made of."""

    id: int
    text: str
    options: tuple[str, ...]
    who: tuple[str, ...] | None
    within_s: float | None

    def link(self, by: str = "link") -> str:
        """The address of a page on which `by` can answer, once. Whoever has it can answer in that name.

        Raises `ConfigError` when AGENTRT_PUBLIC_URL or AGENTRT_SECRET is not set.
        """
        base = os.environ.get(public_url_variable, "")
        if not base.startswith(("http://", "https://")):
            raise ConfigError(
                f"{public_url_variable} is {base!r}; links need the address under which people reach agentrt run --http,"
                " such as https://agents.example.org."
            )
        return f"{base.rstrip('/')}/decide/{self.id}?by={quote(by, safe='')}&signature={signature(self.id, by)}"


def signature(decision_id: int, by: str) -> str:
    """What proves that a link was made here, for this question and person. Raises `ConfigError` without AGENTRT_SECRET."""
    secret = os.environ.get(secret_variable, "")
    if len(secret) < _secret_chars_min:
        raise ConfigError(
            f"{secret_variable} has {len(secret)} characters; signed links need {_secret_chars_min} or more, the same in every"
            " process."
        )
    return hmac.new(secret.encode(), f"{decision_id}\n{by}".encode(), hashlib.sha256).hexdigest()


async def decide(
    question: str,
    options: Sequence[str],
    *,
    within_s: float | None = None,
    default: str | None = None,
    who: str | Sequence[str] | None = None,
    announce: Callable[[Question], Awaitable[Any]] | None = None,
) -> Decision:
    """Ask people, and wait for the first valid answer, for days if need be. The job holds no slot meanwhile.

    It is answered by `agentrt decide ID OPTION`, by `Client.decide`, or on the page behind `Question.link`.

    Args:
        options: 2 to 25 texts; the answer is one of them.
        within_s: how long to wait, in seconds; None: for ever.
        default: the answer when nobody gave one in time.
        who: who may answer; None: anybody.
        announce: a coroutine function that tells people; it runs once, as a step, before the wait.

    Raises:
        DecisionExpired: nobody answered in time and there is no default.
        UsageError: outside of a job, or options that cannot be.
    """
    attempt = running.get()
    if attempt is None:
        raise UsageError("agentrt.decide() was called outside of a job. Call it in an agent that a supervisor runs.")
    people = (who,) if isinstance(who, str) else None if who is None else tuple(who)
    _require_question(question, options, within_s, default, people)
    subject = (question, tuple(options))
    return await decide_as(attempt, "decide", question, tuple(options), people, default, within_s, announce, subject)


async def decide_as(
    attempt: Attempt,
    name: str,
    text: str,
    options: tuple[str, ...],
    who: tuple[str, ...] | None = None,
    default: str | None = None,
    within_s: float | None = None,
    announce: Callable[[Question], Awaitable[Any]] | None = None,
    subject: object = None,
) -> Decision:
    """As `decide`, under a step name. `subject`: what a rerun must ask again, None when its words may have changed."""
    begun = attempt.begin("decide", name, subject)
    known = begun.known
    if known is not None and known.done:
        state = known
    else:
        asked = NewQuestion(text, options, who, default, within_s)
        decision_id, state = await through_outages(
            lambda: attempt.store.open_decision(attempt.owner, begun.mark, asked)
        )
        if announce is not None and not state.done:
            with attempt.branches.inside(Branch(f"{begun.mark.id}/")):
                await step(announce, Question(decision_id, text, options, who, within_s), name="announce")
    if not state.done:
        answer = await attempt.until(begun.mark.id, state.due)
        state = answer if answer is not None else await attempt.record(_expired(begun.mark, default))
    if state.output is None:
        error = DecisionExpired(text, within_s or 0)
        fault.mark(error, begun.mark.id, final=True)
        raise error
    given = cast("dict[str, Any]", codec.parse(state.output))
    return Decision(given["option"], given["by"], datetime.fromisoformat(given["at"]))


def _expired(mark: Any, default: str | None) -> StepRecord:
    if default is None:
        return StepRecord(mark, "decide", failure='{"state": "expired"}')
    return StepRecord(
        mark,
        "decide",
        output=codec.encode({"option": default, "by": None, "at": datetime.now(UTC).isoformat()}).decode(),
    )


def _require_question(
    question: str, options: Sequence[str], within_s: float | None, default: str | None, who: tuple[str, ...] | None
) -> None:
    if not isinstance(question, str) or not question.strip() or len(question) > question_chars_max:
        raise UsageError(f"The question must be a text of 1 to {question_chars_max:,} characters.")
    codec.encode(question, at="question")
    if isinstance(options, str) or not 2 <= len(options) <= options_max or len(set(options)) != len(options):
        raise UsageError(f"options are {options!r}; give 2 to {options_max} different texts.")
    for option in options:
        require_name("an option", option)
    for name in who or ():
        require_name("who", name)
    if default is not None and default not in options:
        raise UsageError(f"default is {default!r}; it must be one of the options {list(options)}.")
    if within_s is not None:
        require_within("within_s", within_s, 0.001, delay_s_max)
    elif default is not None:
        raise UsageError("A default needs within_s: without it the question never expires.")
