"""What mypy must accept of the face, and what it must refuse: checked by `mypy`, run by nobody (see test_agent.py)."""

from __future__ import annotations

from typing import assert_type

from agentrt import Job, Message, Retry, agent, step, to


@agent
async def writer(topic: str, *, words: int = 100) -> str:
    return topic * words


@agent(concurrency=4, retry=Retry(max_attempts=2))
async def critic(text: str) -> float:
    return 0.5


@agent
def plain(x: int) -> list[int]:
    return [x]


@agent(name="another")
def renamed(x: int) -> None: ...


async def length(text: str) -> int:
    return len(text)


def shout(text: str) -> str:
    return text.upper()


async def right() -> None:
    assert_type(await writer.send("x"), Job[str])
    assert_type(await writer.send(topic="x", words=5), Job[str])
    assert_type(await (await writer.send("x")).result(), str)
    assert_type(await (await writer.send("x")).result(timeout_s=5), str)
    assert_type(await writer.ask("x"), str)
    assert_type(await writer.options(delay_s=5).send("x"), Job[str])
    assert_type(await writer.options(timeout_s=600).ask("x"), str)
    assert_type(await writer["alice"].send("x"), Job[str])
    assert_type(await writer["alice"].options(priority=1).ask("x", words=3), str)
    assert_type(writer.message("x"), Message[str])
    assert_type(await writer("x"), str)
    assert_type(await critic.send("x"), Job[float])
    assert_type(await critic["k"].ask("x"), float)
    assert_type(await plain.ask(1), list[int])
    assert_type(await (await plain.send(1)).result(), list[int])
    assert_type(await plain(1), list[int])
    assert_type(await renamed.send(1), Job[None])
    assert_type(await step(length, "x"), int)
    assert_type(await step(shout, "x", name="loud"), str)
    await to("elsewhere")["k"].options(delay_s=1).send(anything="goes", n=5)


async def wrong() -> None:
    await writer.send(5)  # type: ignore[arg-type]
    await writer.send("x", 5)  # type: ignore[call-arg]
    await writer.send()  # type: ignore[call-arg]
    await writer.send("x", word=5)  # type: ignore[call-arg]
    await writer.ask(None)  # type: ignore[arg-type]
    await writer.options(delay_s=5).send(5)  # type: ignore[arg-type]
    await writer["alice"].ask(5)  # type: ignore[arg-type]
    writer.message(b"x")  # type: ignore[arg-type]
    writer[5]  # type: ignore[index]
    await critic.send(text=5)  # type: ignore[arg-type]
    await plain(x="1")  # type: ignore[arg-type]
    lines: list[str] = []
    lines.append(await critic.ask("x"))  # type: ignore[arg-type]
