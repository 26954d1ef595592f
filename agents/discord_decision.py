"""The agent `discord_decision`: asks people a question on Discord, with links on which to answer, and waits for days."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import BaseModel, Field

from agentrt import ConfigError, Fail, Question, UsageError, agent, decide
from agentrt.agents.discord_notify import attempts, post_text
from agentrt.agents.discord_text import closed, literal, message_units_max, units


class Answer(BaseModel):
    """What was decided, and by whom; `by` is None when nobody answered in time and this is the default."""

    option: str
    by: str | None


@agent(retry=attempts)  # no timeout_s: it waits for people
async def discord_decision(
    question: str,
    options: Annotated[list[str], Field(min_length=2, max_length=25)],
    webhook: str = "default",
    within_s: float | None = None,
    default: str | None = None,
    who: Annotated[list[str], Field(min_length=1)] | None = None,
) -> Answer:
    """Post `question` to a webhook as `discord_notify` does, and return the first valid answer. Mentions in it notify nobody.

    Where the agents run, AGENTRT_PUBLIC_URL and AGENTRT_SECRET are set; links lead to the page of `agentrt run --http`.
    The question is posted once in the life of the job, however often that is run again; while it waits it holds no slot.

    Args:
        options: 2 to 25 texts; the answer is one of them.
        webhook: the name of a webhook, as the `target` of `discord_notify`.
        within_s: how long to wait, in seconds; None: for ever.
        default: the answer when nobody gave one in time.
        who: who may answer; each gets a link of their own. None: one link, for anybody; the answer is then by "discord".

    Raises:
        DecisionExpired: nobody answered in time and there is no default.
        Fail: a variable is not set, the question cannot be asked so, or Discord refused for good; the reason says which.
        RetryAfter, DiscordUnavailable: as `discord_notify`.
    """
    try:
        decision = await decide(
            question, options, within_s=within_s, default=default, who=who, announce=partial(announce, webhook)
        )
    except UsageError as error:
        raise Fail(str(error)) from error
    return Answer(option=decision.option, by=decision.by)


async def announce(webhook: str, question: Question) -> list[str]:
    """Post a question with its links; returns the ids of the messages. A step: it is posted once."""
    return (await post_text(webhook, message_of(question), None, False, [])).message_ids


def message_of(question: Question) -> str:
    """The text with its options and links. Each link stands in <>, so that Discord fetches no preview of it."""
    lines = [f"Options: {' · '.join(f'**{literal(option)}**' for option in question.options)}"]
    if question.within_s is not None:
        lines.append(f"To be answered within {_length(question.within_s)}.")
    for name in question.who or (None,):
        lines.append(f"{'Answer' if name is None else literal(name)}: <{_link(question, name or 'discord')}>")
        if units(lines[-1]) > message_units_max:
            raise Fail(
                f"The link for {name!r} is {units(lines[-1])} characters long; Discord takes {message_units_max}."
            )
    return "\n".join([closed(question.text), "", *lines])


def _link(question: Question, by: str) -> str:
    try:
        return question.link(by)
    except ConfigError as error:
        raise Fail(str(error)) from None


def _length(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
