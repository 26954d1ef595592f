"""record: an output exists once per (job, step), is stored by the owner only, and comes back to the letter."""

from __future__ import annotations

import asyncio

import pytest

from agentrt.errors import LeaseLost, StoreError
from agentrt.model import Sender, StepMark, StepRecord
from agentrt.store import Store
from tests.conftest import Clock
from tests.store.verbs import (
    claim,
    claim_one,
    fail,
    give_back,
    lapse,
    message,
    others,
    outputs,
    record,
    running_one,
    send,
    succeed,
)


async def outputs_of(store: Store, job_id: int) -> dict[str, str]:
    return {row["step"]: row["output"] for row in await store.steps_of(job_id)}


async def test_a_recorded_output_comes_back_to_the_letter(store: Store) -> None:
    job = await running_one(store)
    output = '{"z":1e17,"a":1.10,"Ω":"🦦 \\u2028","z2":[ ]}'
    assert await record(store, job, "search#0", output) == output
    assert await outputs_of(store, job.id) == {"search#0": output}
    await give_back(store, job)
    assert outputs(await claim_one(store)) == {"search#0": output}


async def test_the_first_output_of_a_step_counts(store: Store) -> None:
    job = await running_one(store)
    assert await record(store, job, "search#0", '{"b":1, "a":2}') == '{"b":1, "a":2}'
    assert await record(store, job, "search#0", '"second"') == '{"b":1, "a":2}'
    await give_back(store, job)
    again = await claim_one(store)
    assert await record(store, again, "search#0", '"third"') == '{"b":1, "a":2}'


@pytest.mark.parametrize("output", ["null", "false", "0", '""', "[]", "{}"])
async def test_an_output_that_says_nothing_is_an_output(store: Store, output: str) -> None:
    job = await running_one(store)
    assert await record(store, job, "search#0", output) == output
    assert await record(store, job, "search#0", "1") == output
    await give_back(store, job)
    assert outputs(await claim_one(store)) == {"search#0": output}


async def test_two_that_record_one_step_at_the_same_time_get_the_same_output(store: Store) -> None:
    job = await running_one(store)
    async with others(store, 8) as stores:
        for step in range(5):
            answers = await asyncio.gather(
                *(record(each, job, f"search#{step}", str(n)) for n, each in enumerate(stores))
            )
            assert len(set(answers)) == 1
            assert (await outputs_of(store, job.id))[f"search#{step}"] == answers[0]


async def test_an_attempt_that_lost_its_lease_cannot_record_a_step(store: Store, clock: Clock) -> None:
    late = await running_one(store)
    await lapse(store, clock)
    with pytest.raises(LeaseLost):
        await record(store, late, "search#0", '"before it is claimed again"')
    current = await claim_one(store)
    with pytest.raises(LeaseLost):
        await record(store, late, "search#0", '"late"')
    assert await outputs_of(store, late.id) == {}
    assert await record(store, current, "search#0", '"ok"') == '"ok"'


async def test_a_stored_output_is_not_told_to_an_attempt_that_lost_its_lease(store: Store, clock: Clock) -> None:
    late = await running_one(store)
    await record(store, late, "search#0", "1")
    await lapse(store, clock)
    with pytest.raises(LeaseLost):
        await record(store, late, "search#0", "1")


@pytest.mark.parametrize("ending", ["succeeded", "failed", "given back"])
async def test_an_attempt_that_ended_records_nothing(store: Store, ending: str) -> None:
    job = await running_one(store)
    await {"succeeded": succeed, "failed": fail, "given back": give_back}[ending](store, job)
    with pytest.raises(LeaseLost):
        await record(store, job, "search#0", "1")
    assert await outputs_of(store, job.id) == {}


async def test_a_job_that_does_not_exist_has_no_steps(store: Store) -> None:
    with pytest.raises(LeaseLost):
        await store.record(Sender(4711, 1), StepRecord(StepMark("search#0"), output="1"))
    assert await store.steps_of(4711) == []


async def test_a_step_belongs_to_one_job(store: Store) -> None:
    await send(store, message(), message())
    one, two = await claim(store)
    await record(store, one, "search#0", "1")
    assert await record(store, two, "search#0", "2") == "2"
    assert await outputs_of(store, one.id) == {"search#0": "1"}


async def test_a_step_may_have_any_name(store: Store) -> None:
    job = await running_one(store)
    names = ["tool#1/search#0", "\"'{}[],:", "ß Ω 🦦", "%s $1 :step", "a" * 500]
    for number, name in enumerate(names):
        await record(store, job, name, str(number))
    await give_back(store, job)
    assert outputs(await claim_one(store)) == {name: str(number) for number, name in enumerate(names)}


async def test_an_output_that_cannot_be_stored_is_refused_and_the_lease_stays(store: Store) -> None:
    job = await running_one(store)
    with pytest.raises(StoreError):
        await record(store, job, "search#0", '{"broken":')
    assert await record(store, job, "search#0", "1") == "1"
    assert await succeed(store, job) == {job.id}


async def test_steps_are_kept_after_the_end(store: Store) -> None:
    job = await running_one(store)
    await record(store, job, "search#0", "1")
    await record(store, job, "answer#0", "2")
    await succeed(store, job)
    assert [row["step"] for row in await store.steps_of(job.id)] == ["search#0", "answer#0"]


async def test_steps_of_many_jobs_at_the_same_time_all_arrive(store: Store) -> None:
    ids = await send(store, *(message() for _ in range(50)))
    jobs = await claim(store)
    await asyncio.gather(*(record(store, job, f"s#{step}", str(job.id + step)) for job in jobs for step in range(4)))
    for job_id in ids:
        assert await outputs_of(store, job_id) == {f"s#{step}": str(job_id + step) for step in range(4)}
