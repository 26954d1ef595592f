"""What a supervisor counts, read by the log at its end and by `/metrics`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

Cause = Literal["notify", "timer", "more", "quiet", "sent", "poll"]
# quiet: while nobody rang, see the doorbell; sent: an attempt of this process sent it, and it was handed over


@dataclass(slots=True)
class Stats:
    """Counts since the process started."""

    claims: Counter[str] = field(default_factory=Counter)  # statements, by cause
    claimed: Counter[str] = field(default_factory=Counter)  # jobs, by the cause of the claim that found them
    outcomes: Counter[str] = field(
        default_factory=Counter
    )  # succeeded, failed, cancelled, retried, later, released, lost
    swept: int = 0
    stalls: int = 0
    restarts: Counter[str] = field(default_factory=Counter)  # of loops, by name

    def as_dict(self) -> dict[str, object]:
        return {
            "claims": dict(self.claims),
            "claimed": dict(self.claimed),
            "outcomes": dict(self.outcomes),
            "swept": self.swept,
            "stalls": self.stalls,
            "restarts": dict(self.restarts),
        }
