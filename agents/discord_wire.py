"""One post to a Discord webhook: how it is sent, and what each answer means for the job.

No error of the HTTP library, which would carry the webhook's address, is the cause or the context of an error of ours.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from agentrt import Fail
from agentrt.agents.discord_webhook import Webhook, later, seconds_of

if TYPE_CHECKING:
    import aiohttp

connect_s_max = 10.0
answer_s_max = 30.0
turn_s_max = 5.0  # so long a post waits for the one before it to the same webhook; a slot is not for waiting
wait_s_max = 7 * 86_400.0
ban_s = 600.0
_wait_unknown_s = 5.0

# What makes a webhook useless until somebody mends it (topics/opcodes-and-status-codes).
_webhook_codes = {10003, 10015, 40001, 50001, 50013, 50027}
_text_chars_max = 500
_log = structlog.get_logger("agentrt.agents.discord_notify")


class DiscordUnavailable(Exception):
    """The post did not come through, or its fate is not known: the attempt failed, and is repeated with backoff."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: `body` is the decoded JSON object, None when it was something else."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: Mapping[str, object] | None


@dataclass(frozen=True, slots=True)
class Fault:
    """No answer came. The error is made away from the frames of the HTTP library, whose values hold the address."""

    what: str
    maybe_sent: bool

    def error(self, webhook: Webhook) -> DiscordUnavailable:
        if self.maybe_sent:
            return _unclear(webhook, f"gave no answer ({self.what})")
        return DiscordUnavailable(
            f"No connection to {webhook.host} for {webhook.target!r} ({self.what}). Nothing was sent."
        )


async def post(webhook: Webhook, body: Mapping[str, object], attachment: str | None = None) -> str:
    """Post one message, with `attachment` as a text file, and return its id ("" when it is confirmed without one).

    Posts of this process to one webhook go one at a time, and only while its limit is not known to be used up.

    Raises:
        RetryAfter: the limit is used up; it says for how long. Nothing was stored.
        Fail: Discord refused the message or the webhook for good; the reason has its code and the path of the error.
        DiscordUnavailable: there was no answer, or one that says nothing. If the request had been sent, the message may
            have been stored, and shows twice when it is sent again (at least once); a warning is logged.
    """
    lane = webhook.lane
    try:
        async with asyncio.timeout(turn_s_max):
            await lane.turn.acquire()
    except TimeoutError:
        raise later(turn_s_max, f"other posts to {webhook.target!r} are under way") from None
    try:
        lane.require_open(webhook.target)
        webhook.host_lane.require_open(webhook.target)
        answer = await _exchange(webhook, body, attachment)
        if isinstance(answer, Fault):
            raise answer.error(webhook)
        lane.learn(answer.headers)
        return settle(webhook, answer)
    finally:
        lane.turn.release()


async def _exchange(webhook: Webhook, body: Mapping[str, object], attachment: str | None) -> Answer | Fault:
    try:
        import aiohttp
    except ImportError:
        raise Fail("discord_notify needs aiohttp. Install it where it runs: pip install 'agentrt[discord]'.") from None

    timeout = aiohttp.ClientTimeout(total=answer_s_max, sock_connect=connect_s_max)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers={"User-Agent": user_agent()}) as session,
            session.post(webhook.url, data=_encoded(body, attachment), allow_redirects=False) as response,
        ):
            text = webhook.hide(await response.text(errors="replace"))
            return Answer(response.status, response.headers.copy(), _json_object(text))
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        return Fault(_described(error), maybe_sent=False)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        return Fault(_described(error), maybe_sent=True)


def settle(webhook: Webhook, answer: Answer) -> str:
    """The id of the stored message; raises what `post` raises for every other answer."""
    status, body = answer.status, answer.body
    if 200 <= status < 300:
        if body is not None and isinstance(body.get("id"), str):
            return str(body["id"])
        if body is None and status == 204:
            return ""
        raise _unclear(webhook, f"answered {status} without the message that it stored")
    if status == 429:
        raise _limit(webhook, answer)
    if status >= 500 or status in (408, 409, 425):
        raise _unclear(webhook, f"answered {status}{_explained(body)}")
    if 300 <= status < 400:
        raise Fail(f"{webhook.host} answered with a redirect ({status}). Set {webhook.variable} to the final address.")
    raise _refused(webhook, answer)


def _limit(webhook: Webhook, answer: Answer) -> Exception:
    """A 429: of Discord, for this webhook or for all; or of the edge in front of it, which has banned this address.

    The wait is the body's, which keeps its fraction; the header is rounded. What comes without Discord's own body, or
    without both `Via` and `global`, is of the edge (discord.py's HTTPClient.request), and tells no usable time.
    """
    body = answer.body or {}
    wait_s = seconds_of(body.get("retry_after"))
    from_discord = "retry_after" in body and ("global" in body or "Via" in answer.headers)
    if not from_discord:
        webhook.host_lane.close(ban_s)
        told_s = seconds_of(answer.headers.get("Retry-After")) or 0.0
        _log.warning("discord.banned", host=webhook.host, wait_s=ban_s)
        return later(
            min(max(ban_s, told_s), wait_s_max), f"{webhook.host} has banned this machine's address for a time"
        )
    wait_s = min(wait_s or seconds_of(answer.headers.get("Retry-After")) or _wait_unknown_s, wait_s_max)
    is_global = body.get("global") is True
    lane = webhook.host_lane if is_global else webhook.lane
    # Other processes share the limit, and wait too: each comes back at a time of its own.
    lane.close(wait_s + random.uniform(0, min(wait_s, 5)))  # noqa: S311 - spreads load, guards nothing
    return later(wait_s, f"{webhook.host} limits {'all posts' if is_global else repr(webhook.target)}: {wait_s:g} s")


def _refused(webhook: Webhook, answer: Answer) -> Fail:
    status, code = answer.status, (answer.body or {}).get("code")
    said = f"({status}{_explained(answer.body)})"
    if status in (401, 403, 404):
        reason = (
            f"{webhook.host} refuses the webhook of {webhook.target!r} {said}."
            f" Make a new one in the channel's settings and set {webhook.variable}."
        )
        if code in _webhook_codes:
            webhook.lane.refuse(reason)
        return Fail(reason)
    return Fail(f"{webhook.host} refuses the message for {webhook.target!r} {said}.")


def _unclear(webhook: Webhook, what: str) -> DiscordUnavailable:
    _log.warning("discord.maybe_sent", target=webhook.target, host=webhook.host, what=what)
    return DiscordUnavailable(
        f"{webhook.host} {what}; target {webhook.target!r}. The message may have been stored; it is sent again"
        " (at least once)."
    )


def _explained(body: Mapping[str, object] | None) -> str:
    """Discord's code, words and the path of each error in the request; nothing of a page."""
    if body is None:
        return ""
    words = [f"code {body['code']}"] if "code" in body else []
    words += [str(body["message"])] if "message" in body else []
    words += _errors(body.get("errors"), "")
    return "".join(f", {word}" for word in words)[:_text_chars_max]


def _errors(node: object, path: str) -> Iterator[str]:
    """The leaves of `errors` as "path: message (CODE)" (developers/reference, Error Messages)."""
    if not isinstance(node, dict):
        return
    for name, child in node.items():
        if name == "_errors" and isinstance(child, list):
            for error in child:
                if isinstance(error, dict):
                    yield f"{path or 'request'}: {error.get('message')} ({error.get('code')})"
        else:
            yield from _errors(child, f"{path}.{name}" if path else str(name))


def _encoded(body: Mapping[str, object], attachment: str | None) -> aiohttp.FormData | aiohttp.JsonPayload:
    import aiohttp

    if attachment is None:
        return aiohttp.JsonPayload(body)
    form = aiohttp.FormData()
    form.add_field("payload_json", json.dumps(body), content_type="application/json")
    form.add_field("files[0]", attachment.encode(), filename="message.txt", content_type="text/plain; charset=utf-8")
    return form


def _json_object(text: str) -> Mapping[str, object] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _described(error: BaseException) -> str:
    """What kind of fault it was; the texts of the library's errors may hold the address."""
    cause = getattr(error, "os_error", error)
    reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else ""
    return f"{type(error).__name__}: {reason}" if reason else type(error).__name__


def user_agent() -> str:
    """The form that Discord asks for; a request without may be blocked (developers/reference, User Agent).

    The project has no page of its own: the address is of a domain that is kept for such places (RFC 2606).
    """
    return f"DiscordBot (https://agentrt.example, {importlib.metadata.version('agentrt')})"
