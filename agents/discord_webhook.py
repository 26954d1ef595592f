"""Where the notices of a target go, and what this process knows about the limits there.

The address of a webhook is a credential: it comes from the environment and is shown by nothing here.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from agentrt import Fail, RetryAfter

closed_s_max = 600.0  # one post in so long finds out whether a limit still holds, however long a wait was told

_target_rule = re.compile(r"#?([A-Za-z0-9][A-Za-z0-9_-]{0,63})")
_path_rule = re.compile(r"(?:/.*)?/webhooks/[^/]+/([^/]+)/?")
_unversioned = re.compile(r"^/api/webhooks/")
_discord_hosts = ("discord.com", "discordapp.com")


class Lane:
    """A limit as this process has learned it: until when it is used up, and whose turn it is to try.

    Other processes use up the same limit unseen; what they take shows as a 429 here, and closes the lane too.
    """

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self._closed_until = 0.0
        self._refused_until = 0.0
        self._refusal = ""

    def close(self, seconds: float) -> None:
        """Let no post pass for so long; a longer closure stays."""
        self._closed_until = max(self._closed_until, time.monotonic() + min(seconds, closed_s_max))

    def refuse(self, reason: str) -> None:
        """Fail what comes for `closed_s_max` seconds, unasked: refused requests get this machine's address banned."""
        self._refusal = reason
        self._refused_until = time.monotonic() + closed_s_max

    def require_open(self, target: str) -> None:
        """Raises `RetryAfter` while the limit is used up, `Fail` while the webhook is known to refuse."""
        now = time.monotonic()
        if now < self._refused_until:
            raise Fail(f"{self._refusal} It is asked again in {self._refused_until - now:.0f} s at the earliest.")
        if now < self._closed_until:
            raise later(self._closed_until - now, f"posts to {target!r} are held back: the limit is used up")

    def learn(self, headers: Mapping[str, str]) -> None:
        """Close before Discord answers 429: when no post is left until the reset."""
        reset_after_s = seconds_of(headers.get("X-RateLimit-Reset-After"))
        if headers.get("X-RateLimit-Remaining", "").strip() == "0" and reset_after_s is not None:
            self.close(reset_after_s)


def later(seconds: float, reason: str) -> RetryAfter:
    """Run again after `seconds` and a random share more, so that jobs that wait together do not come back together."""
    return RetryAfter(seconds + random.uniform(0.05, 0.25 + min(seconds, 60) / 4), reason)  # noqa: S311 - spreads load


def seconds_of(value: object) -> float | None:
    """A wait as a number of seconds above 0; None for anything else."""
    try:
        seconds = float(value) if isinstance(value, (int, float, str)) else 0.0
    except ValueError:
        return None
    return seconds if 0 < seconds < float("inf") else None


_lanes: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Lane]] = (
    WeakKeyDictionary()
)  # a lock is bound to its loop


def _lane_of(name: str) -> Lane:
    lanes = _lanes.setdefault(asyncio.get_running_loop(), {})
    return lanes.setdefault(name, Lane())


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where the posts of a target go. Its `repr` holds no credential: it may stand in a traceback with local values."""

    target: str
    variable: str
    host: str
    url: str = field(repr=False)
    token: str = field(repr=False)

    @property
    def lane(self) -> Lane:
        """The limit of this webhook. Another address in the variable has another one."""
        return _lane_of(hashlib.sha256(self.url.encode()).hexdigest())

    @property
    def host_lane(self) -> Lane:
        """What all webhooks of the host share: the global limit, and a ban of this machine's address."""
        return _lane_of(self.host)

    def hide(self, text: str) -> str:
        """`text` without the address and its token, for a server that echoes what it was asked."""
        return text.replace(self.url, f"<{self.variable}>").replace(self.token, "***")


def find_webhook(target: str) -> Webhook:
    """The webhook of a target: `DISCORD_WEBHOOK_OPS` for `ops`; for `default` also `DISCORD_WEBHOOK`.

    On Discord itself the address is made to name version 10 of the API: an address without one means version 6, which
    is deprecated (developers/reference) and tells waits in milliseconds (discord/discord-api-docs#2360).

    Raises `Fail` that names the variable to set, when there is none or it holds no webhook address.
    """
    named = _target_rule.fullmatch(target)
    if named is None:  # It may be an address, put into the wrong place: it is not repeated here.
        raise Fail(
            "The target is no name: 1 to 64 letters, digits, '_' or '-'. An address belongs into the environment, as"
            " DISCORD_WEBHOOK_<NAME>."
        )
    name = named.group(1)
    variable = f"DISCORD_WEBHOOK_{name.upper().replace('-', '_')}"
    if name.lower() == "default" and not _variable(variable):
        variable = "DISCORD_WEBHOOK"
    if not _variable(variable):
        raise Fail(f"There is no webhook for the target {name!r}. Set {variable} to its address where the agents run.")
    webhook = _parsed(name, variable, _variable(variable))
    if webhook is None:
        raise Fail(f"{variable} holds no webhook address. Its form is https://discord.com/api/webhooks/<id>/<token>.")
    return webhook


def _variable(name: str) -> str:
    return os.environ.get(name, "").strip()


def _parsed(target: str, variable: str, url: str) -> Webhook | None:
    try:
        address = urlsplit(url)
        host, path = address.hostname, _path_rule.fullmatch(address.path)
    except ValueError:
        return None
    if not host or path is None or address.scheme not in ("http", "https"):
        return None
    if any(host == known or host.endswith(f".{known}") for known in _discord_hosts):
        address = address._replace(path=_unversioned.sub("/api/v10/webhooks/", address.path))
    query = "&".join(part for part in (address.query, "wait=true") if part)
    return Webhook(target, variable, host, address._replace(query=query, fragment="").geturl(), path.group(1))
