"""An outage: one loop knocks for all, and its answer sets all of them going."""

from __future__ import annotations

import asyncio

from agentrt.engine.outage import Outage

soon_s = 5.0


async def test_in_an_outage_one_knocks_and_the_answer_to_it_sets_all_going() -> None:
    outage = Outage()
    knocks: list[None] = []
    outage.on_knock = lambda: knocks.append(None)
    outage.met("no route")
    assert outage.lasts
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(outage.sit_out(1, knocks=False)) for _ in range(5)]
        async with asyncio.timeout(soon_s):
            await outage.sit_out(1, knocks=True)  # it does not wait for itself
            while len(knocks) < 5:  # noqa: ASYNC110 - each asks once, after its own pause
                await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        outage.over()
        async with asyncio.timeout(soon_s):
            await asyncio.wait(waiting)
    assert not outage.lasts


async def test_a_loop_that_fails_while_the_database_answers_waits_for_nobody() -> None:
    outage = Outage()
    outage.met("that table is gone")
    outage.over()
    async with asyncio.timeout(soon_s):
        await outage.sit_out(1, knocks=False)


async def test_an_outage_that_is_met_again_is_waited_for_again() -> None:
    outage = Outage()
    outage.met("no route")
    outage.over()
    outage.met("no route")
    assert outage.lasts
    knocked = asyncio.Event()
    outage.on_knock = knocked.set
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(outage.sit_out(1, knocks=False))
        await knocked.wait()
        assert not waiting.done()
        outage.over()
