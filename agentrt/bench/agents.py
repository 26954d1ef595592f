"""The agents that are measured; run by the supervisor process that a measurement starts."""

from __future__ import annotations

import time

from agentrt.agent import agent
from agentrt.durable.step import step


@agent
async def noted(sent_at: float) -> float:
    """Seconds from the sender's clock reading to this line. The monotonic clock is one for all processes of a machine."""
    return time.monotonic() - sent_at


async def _nothing(number: int) -> int:
    return number


@agent
async def stepping(count: int) -> float:
    """Seconds for so many steps, one after the other."""
    began = time.monotonic()
    for number in range(count):
        await step(_nothing, number, name="nothing")
    return time.monotonic() - began
