"""The agents that are measured in a supervisor process of their own."""

from __future__ import annotations

import time

from agentrt.agent import agent


@agent
async def noted(sent_at: float) -> float:
    """Seconds from the sender's clock reading to this line. The monotonic clock is one for all processes of a machine."""
    return time.monotonic() - sent_at


@agent
async def noop(n: int) -> None:
    """A job that costs nothing of its own."""
