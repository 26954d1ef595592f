"""The agents that agentrt's supervisor runs for the comparison."""

from __future__ import annotations

import asyncio
import os
from functools import cache
from pathlib import Path

from agentrt import Agent, agent, step
from tests.bench.peers.probe import Probe

probe_variable = "AGENTRT_PEERS_PROBE"
worker_variable = "AGENTRT_PEERS_WORKER"


@cache
def probe() -> Probe:
    return Probe(Path(os.environ[probe_variable]), int(os.environ[worker_variable]))


@agent
async def noop(number: int, x: float) -> None:
    probe().start(number)
    probe().end(number)


@agent
async def sleep(number: int, x: float) -> None:
    probe().start(number)
    await asyncio.sleep(x)
    probe().end(number)


@agent
async def ping(number: int, x: float) -> None:
    probe().start(number)
    if number % x:
        await ping.send(number + 1, x)
    probe().end(number)


async def _one(slot: int) -> int:
    probe().start(slot)
    probe().end(slot)
    return 1


@agent
async def steps(number: int, x: float) -> None:
    for slot in range(number * int(x), (number + 1) * int(x)):
        await step(_one, slot, name="one")


agents: dict[str, Agent[[int, float], None]] = {"noop": noop, "sleep": sleep, "ping": ping, "steps": steps}
