"""Agents that use every durable verb, and a supervisor process that kills itself at the n-th durable boundary.

A boundary is a call of the store by which an attempt writes. Steps and other effects outside of the database are noted in a
ledger file, one write a line.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import agentrt
from agentrt import Budget, Fail, Retry, agent, step
from agentrt.config import Settings, setup_logging
from agentrt.engine.supervisor import Supervisor
from agentrt.store.postgres import PostgresStore

often = Retry(max_attempts=50, base_s=0.05, factor=1)


@dataclass
class Crash:
    """Where a process dies: before or after its n-th boundary, counted from 1; 0: nowhere."""

    number: int = 0
    before: bool = True
    ledger: Path = Path("/dev/null")
    reached: int = field(default=0, init=False)


crash = Crash()  # of this process


def note(kind: str) -> None:
    with crash.ledger.open("a") as ledger:
        ledger.write(f"{kind}\n")


def reach(name: str, *, before: bool) -> None:
    """Die here, when it is the place."""
    if before:
        crash.reached += 1
        note(f"boundary {name}")
    if crash.reached == crash.number and crash.before == before:
        os.kill(os.getpid(), signal.SIGKILL)


# ------------------------------------------------------------------ the agents


async def draw(name: str) -> str:
    note(f"effect {name}")
    agentrt.spend(usd=0.01, tokens=1)
    return uuid4().hex


def draw_in_a_thread(name: str) -> str:
    note(f"effect {name}")
    return uuid4().hex


async def fail_twice(tries: str) -> str:
    note(f"effect {tries}")
    if crash.ledger.read_text().count(f"effect {tries}\n") < 3:
        raise ValueError("not yet")
    return uuid4().hex


async def refuse() -> None:
    note("effect refuse")
    raise KeyError("refused")


async def insert(connection: Any, value: int) -> int:
    note(f"effect insert-{value}")
    await connection.execute("insert into public.effects(value) values ($1)", value)
    await told.send(f"inserted {value}")
    return value


async def branch(name: str) -> list[str]:
    return [await step(draw, f"{name}-{number}", name="draw") for number in range(2)]


@agent(retry=often)
async def told(text: str) -> str:
    return text


@agent(retry=often)
async def slow(seconds: float) -> str:
    await agentrt.sleep(seconds)
    return uuid4().hex


@agent(retry=often)
async def refusing() -> None:
    raise Fail("never")


@agent(retry=often)
async def counting(by: int) -> int:
    kept = agentrt.state(dict)
    kept["sum"] = kept.get("sum", 0) + by
    return int(kept["sum"])


@agent(retry=often, budget=Budget(usd=10, jobs=50))
async def everything() -> dict[str, Any]:
    seen: dict[str, Any] = {"first": await step(draw, "first")}
    seen["thread"] = await step(draw_in_a_thread, "thread")
    seen["retried"] = await step(fail_twice, "tries", retry=Retry(max_attempts=5, base_s=0.01, factor=1))
    try:
        await step(refuse)
    except KeyError as error:
        seen["refused"] = str(error)
    async with agentrt.reserve(usd=0.5):
        seen["reserved"] = await step(draw, "reserved")
    seen["branches"] = await asyncio.gather(branch("left"), branch("right"))
    seen["transactions"] = [await agentrt.transaction(insert, value) for value in (1, 2)]
    message = await told.send("sent")
    seen["sent"] = await message.result()
    seen["asked"] = await slow.ask(0.3)
    try:
        await refusing.ask()
    except agentrt.JobFailed as error:
        seen["asked in vain"] = error.reason
    try:
        await slow.options(timeout_s=0.05).ask(1.0)
    except agentrt.ReplyTimeout as error:
        seen["late"] = error.timeout_s
    seen["counted"] = [await counting["k"].ask(by) for by in (1, 2)]
    await agentrt.sleep(0.25)
    decision = await agentrt.decide("Go on?", ["yes", "no"], within_s=600)
    seen["decided"] = [decision.option, decision.by]
    async with agentrt.shield():
        seen["last"] = await step(draw, "last")
    return seen


agents = (everything, told, slow, refusing, counting)

# ------------------------------------------------------------------ the process


class CrashingStore(PostgresStore):
    """The store, with a place to die before and after each write of an attempt."""

    async def send(self, jobs: Any, connection: Any = None, sender: Any = None) -> Any:
        return await self._at("send", super().send(jobs, connection, sender))

    async def record(self, owner: Any, record: Any, connection: Any = None) -> Any:
        return await self._at(f"record {record.mark.id}", super().record(owner, record, connection))

    async def await_job(self, *values: Any) -> Any:
        return await self._at("await_job", super().await_job(*values))

    async def open_decision(self, *values: Any) -> Any:
        return await self._at("open_decision", super().open_decision(*values))

    async def open_budget(self, *values: Any) -> Any:
        return await self._at("open_budget", super().open_budget(*values))

    async def reserve(self, *values: Any) -> Any:
        return await self._at("reserve", super().reserve(*values))

    async def settle(self, *values: Any) -> Any:
        return await self._at("settle", super().settle(*values))

    async def finish(self, outcomes: Any, **options: Any) -> Any:
        return await self._at("finish", super().finish(outcomes, **options))

    async def turn(self, outcomes: Any, wanted: Any, **options: Any) -> Any:
        return await self._at("finish", super().turn(outcomes, wanted, **options))

    async def relay(self, outcomes: Any, job: Any, sender: Any) -> Any:
        return await self._at("relay", super().relay(outcomes, job, sender))

    async def park(self, outcomes: Any, **options: Any) -> Any:
        return await self._at("park", super().park(outcomes, **options))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with super().transaction() as connection:
            yield connection
            reach("commit", before=True)
        reach("commit", before=False)

    @staticmethod
    async def _at(name: str, call: Any) -> Any:
        reach(name, before=True)
        answer = await call
        reach(name, before=False)
        return answer


def supervise(dsn: str, ledger: Path, number: int, before: bool) -> None:
    """The whole life of a process: until it is killed, by itself or by the test."""
    crash.number, crash.before, crash.ledger = number, before, ledger
    setup_logging("error")
    store = CrashingStore(dsn)
    settings = Settings(lease_s=10, warm_s=0.1, poll_s=600)
    asyncio.run(Supervisor({each.name: each for each in agents}, store, settings).run())
