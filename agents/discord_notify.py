"""The agent `discord_notify`: posts a text to a Discord webhook, long ones in parts, each part once."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from agentrt import Fail, Retry, agent, step
from agentrt.agents.discord_text import is_blank, message_units_max, split
from agentrt.agents.discord_webhook import find_webhook
from agentrt.agents.discord_wire import post

parts_max = 10  # a longer text is one message with its beginning, and the whole as a file
attempts = Retry(max_attempts=8, base_s=2, factor=3, cap_s=1_800)
_suppress_notifications = 1 << 12  # resources/message, Message Flags

Mention = Literal["users", "roles", "everyone"]


class Notice(BaseModel):
    """What was posted: the ids of the messages in their order. `attached`: the whole text went as a file."""

    target: str
    message_ids: list[str]
    attached: bool


@agent(retry=attempts, timeout_s=600, concurrency=8)
async def discord_notify(
    content: str,
    target: str = "default",
    username: Annotated[str, Field(min_length=1, max_length=80)] | None = None,
    silent: bool = False,
    allowed_mentions: list[Mention] | None = None,
) -> Notice:
    """Post `content` to the webhook of `target`, whose address is in the environment: `DISCORD_WEBHOOK_OPS` for `ops`.

    A text over 2,000 characters goes in parts, in order; each is a step, so a retry goes on with the part that failed.
    Over `parts_max` parts it goes as a file. While the webhook's limit is used up, the job is rescheduled and holds no
    slot. A part whose answer is lost is sent again: at least once, never silently dropped.

    Args:
        target: the name of a webhook, `ops` or `#ops`; `default` is `DISCORD_WEBHOOK`.
        username: the name to post under instead of the webhook's.
        silent: post without a notification.
        allowed_mentions: which kinds of mentions in the text notify people; none unless named here.

    Raises:
        Fail: the text is blank, the target is not set up, or Discord refused for good; the reason says which.
        RetryAfter: a limit is used up.
        DiscordUnavailable: no usable answer; the attempt is repeated with backoff.
    """
    if is_blank(content):
        raise Fail(f"The content is blank ({len(content)} characters, none of them visible). Nothing was sent.")
    return await post_text(target, content, username, silent, allowed_mentions or [])


async def post_text(target: str, content: str, username: str | None, silent: bool, mentions: list[Mention]) -> Notice:
    """A text as one message or as several in order, each a step."""
    parts = split(content)
    if len(parts) > parts_max:
        beginning = split(content, message_units_max - 100)[0]
        notice = f"{beginning}\n… the whole text ({len(content):,} characters) is attached."
        return Notice(
            target=target,
            message_ids=[await step(post_part, target, notice, username, silent, mentions, content, name="part-1")],
            attached=True,
        )
    ids = [
        await step(post_part, target, part, username, silent, mentions, None, name=f"part-{number}")
        for number, part in enumerate(parts, 1)
    ]
    return Notice(target=target, message_ids=ids, attached=False)


async def post_part(
    target: str, content: str, username: str | None, silent: bool, mentions: list[Mention], attachment: str | None
) -> str:
    """One message; returns its id. A step: what it returns is recorded before the next part is sent."""
    body: dict[str, object] = {"content": content, "allowed_mentions": {"parse": mentions}}
    if username is not None:
        body["username"] = username
    if silent:
        body["flags"] = _suppress_notifications
    return await post(find_webhook(target), body, attachment)
