"""The agents of the chaos run. Each writes what it does to a ledger file, so that the checker need not trust the database alone.

A note is one write to a file opened for appending: a kill leaves it whole or not there at all. It says under which fence it
was written.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import uuid

from agentrt import Retry, agent, current, step
from agentrt.context import running

often = Retry(max_attempts=1_000, base_s=0.05, factor=1)  # no job of the run may end because it was killed too often
doomed_attempts = 2


def note(kind: str, **more: object) -> None:
    attempt = running.get()
    assert attempt is not None
    job = attempt.job
    line = {"kind": kind, "job": job.id, "agent": job.agent, "key": job.key, "fence": job.fence, "pid": os.getpid()}
    with open(os.environ["LEDGER"], "a") as ledger:
        ledger.write(json.dumps({**line, **more}) + "\n")


async def work() -> None:
    """Long enough that a kill may fall into it."""
    await asyncio.sleep(random.uniform(0, 0.04))


async def draw(name: str) -> str:
    """A step whose output is another one each time it runs, so that two runs cannot pass for one."""
    note("ran", step=name)
    await work()
    return uuid.uuid4().hex


async def drawn(name: str) -> str:
    value = await step(draw, name, name=name)
    note("saw", step=name, value=value)
    return value


@agent(retry=often)
async def plain(n: int) -> int:
    note("start")
    await work()
    note("end")
    return n


@agent(retry=often)
async def keyed(n: int) -> int:
    """One of a mailbox; every third fails once and must keep its place."""
    note("start")
    await work()
    if n % 3 == 0 and current().attempt == 1:
        raise ValueError("the first attempt fails")
    note("end")
    return n


@agent(retry=often)
async def failing_once(n: int) -> int:
    note("start")
    await work()
    if current().attempt == 1:
        raise ValueError("the first attempt fails")
    note("end")
    return n


@agent(retry=Retry(max_attempts=doomed_attempts, base_s=0.05, factor=1))
async def doomed(n: int) -> int:
    note("start")
    await work()
    raise ValueError(f"every attempt of {n} fails")


@agent(retry=often)
async def held(n: int) -> int:
    """Its first attempt goes on until its process is killed."""
    note("start")
    if current().attempt == 1:
        await asyncio.Event().wait()
    note("end")
    return n


@agent(retry=often)
async def child(parent: int, token: str) -> str:
    note("start")
    await work()
    note("end")
    return token


@agent(retry=often)
async def stepping(n: int) -> list[str]:
    """A step, a message to a child that carries its output, a failure now and then, a second step."""
    note("start")
    first = await drawn("first")
    await child.send(parent=current().job_id, token=first)
    await work()
    if n % 2 and current().attempt == 1:
        raise ValueError("the first attempt fails")
    second = await drawn("second")
    note("end")
    return [first, second]


@agent(retry=often)
async def asking(n: int) -> str:
    """A step, and a child whose reply is the result."""
    note("start")
    token = await drawn("first")
    reply = await child.ask(parent=current().job_id, token=token)
    note("end")
    return reply
