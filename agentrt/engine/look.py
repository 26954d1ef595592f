"""A look: one claim on its way, alone or with the ends of jobs, and what those who send it must give back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agentrt.engine.stats import Cause
from agentrt.model import Claimed, Wanted

batch_max = 200  # jobs that one statement claims or ends
Mailboxes = frozenset[tuple[str, str | None]]  # by agent and key


@dataclass(frozen=True, slots=True)
class Look:
    """What it asks for, why, and when it was asked."""

    wanted: Wanted
    cause: Cause
    asked_at: float  # before the statement: our idea of the lease must not outlast the database's
    news: int  # how many times something was heard by then: what came later it may not have seen
    ending: Counter[str]  # jobs by agent that the same statement ends
    mailboxes: Mailboxes  # whose next message the same statement makes ready


class Claims(Protocol):
    """Who hands out looks. Each is given back: `claimed` with what it brought, or `failed`."""

    def along(self, ending: Counter[str], mailboxes: Mailboxes) -> Look | None: ...
    def claimed(self, look: Look, jobs: Sequence[Claimed]) -> None: ...
    def failed(self, look: Look) -> None: ...
