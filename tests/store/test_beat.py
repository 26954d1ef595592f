"""beat: a supervisor shows that it lives, and sees what is ready: for itself, and for agents that it does not know."""

from __future__ import annotations

from agentrt.model import Beat
from agentrt.store import Store
from tests.conftest import Clock
from tests.store.verbs import beat, claim, lapse, message, policy, send, send_one


async def test_a_beat_tells_whether_a_job_of_its_agents_is_ready(store: Store) -> None:
    assert await beat(store) == Beat(ready=False, unknown={}, unrung=True)
    await send(store, message(), message(key="k"))
    assert (await beat(store)).ready
    await claim(store)
    assert not (await beat(store)).ready


async def test_a_job_that_must_run_alone_is_ready_too(store: Store, clock: Clock) -> None:
    await send_one(store, max_attempts=2)
    await claim(store, like=policy(max_attempts=2))
    await lapse(store, clock)
    assert (await beat(store)).ready


async def test_a_beat_names_the_agents_it_does_not_know_and_counts_what_is_ready_for_them(store: Store) -> None:
    await send(store, *(message(agent) for agent in ("0", "a", "a", "b", "b", "b", "🦦")))
    await send(store, message("b", delay_s=60.0), message("later", delay_s=60.0), message("c", "k"), message("c", "k"))
    assert await beat(store) == Beat(ready=True, unknown={"0": 1, "b": 3, "c": 1, "🦦": 1}, unrung=True)


async def test_a_beat_does_not_name_what_was_told_and_no_more_than_it_may(store: Store) -> None:
    names = [f"u{n:02}" for n in range(10)]
    await send(store, *(message(name) for name in names))
    assert list((await beat(store, names_max=4)).unknown) == names[:4]
    assert list((await beat(store, told=names[:4], names_max=4)).unknown) == names[4:8]
    assert list((await beat(store, told=names[:8], names_max=4)).unknown) == names[8:]
    assert (await beat(store, told=names, names_max=4)).unknown == {}
    assert (await beat(store, names_max=0)).unknown == {}


async def test_a_beat_counts_no_further_than_a_thousand(store: Store) -> None:
    await send(store, *(message("b") for _ in range(1_200)))
    assert (await beat(store)).unknown == {"b": 1_000}
