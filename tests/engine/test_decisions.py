"""Questions: one answer counts whoever is first, an answer is never overheard, and what was asked in vain can be asked again."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import asyncpg
import pytest

import agentrt
from agentrt import DecisionExpired, DecisionRefused, Question, agent, decide, step
from tests.conftest import Start, supervising
from tests.support import Sql, eventually
from tests.web.desk import desk_of, secret


async def decision_of(sql: Sql, job_id: int) -> int:
    return await eventually(lambda: sql.value("select id from agentrt.decisions where job_id = $1", job_id))


async def test_of_twenty_answers_at_once_through_link_and_client_one_counts_and_the_others_are_told_whose(
    start: Start, sql: Sql, client: agentrt.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRT_SECRET", secret)
    async with desk_of(start, sql, "--processes", "2") as desk:
        for _ in range(5):
            job_id, decision_id = await desk.ask()

            async def by_link(name: str, decision_id: int = decision_id) -> str:
                return (await desk.post(desk.link(decision_id, name), option="yes")).outcome

            async def by_client(name: str, decision_id: int = decision_id) -> str:
                try:
                    await client.decide(decision_id, "no", by=name)
                except DecisionRefused as refusal:
                    return str(refusal)
                return f"recorded: no, by {name}"

            doors = [by_link(f"link-{n}") if n % 2 else by_client(f"client-{n}") for n in range(20)]
            told = await asyncio.gather(*doors)
            (won,) = [text for text in told if text.startswith("recorded: ")]
            _, option, name = re.split(": |, by ", won)
            assert sum(f"already decided by {name}: {option}" in text for text in told) == 19, told
            row = await sql.until(job_id, "succeeded")
            assert row["result"] == f'{{"option":"{option}","by":"{name}"}}'
            (stored,) = await sql.rows("select * from agentrt.decisions where job_id = $1", job_id)
            assert (stored["answer"], stored["answered_by"]) == (option, name)


async def test_the_command_line_races_with_links_to_one_answer(
    start: Start, sql: Sql, database: str, client: agentrt.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("agentrt.cli.decide", reason="the command is not here yet")
    monkeypatch.setenv("AGENTRT_SECRET", secret)
    async with desk_of(start, sql) as desk:
        job_id, decision_id = await desk.ask()

        async def by_command(name: str) -> str:
            command = start("decide", str(decision_id), "yes", "--by", name, name=name)
            return f"recorded: yes, by {name}" if await command.ended() == 0 else command.log()

        async def by_link(name: str) -> str:
            return (await desk.post(desk.link(decision_id, name), option="yes")).outcome

        async def waiting(count: int) -> None:
            held_up = "datname = current_database() and wait_event_type = 'Lock'"
            await eventually(lambda: sql.value(f"select count(*) >= $1 from pg_stat_activity where {held_up}", count))

        gate = await asyncpg.connect(database)
        async with asyncio.TaskGroup() as group, gate.transaction():  # all come to the question before one gets through
            await gate.execute("select 1 from agentrt.jobs where id = $1 for update", job_id)
            doors = [group.create_task(by_command(f"command-{n}")) for n in range(4)]
            await waiting(4)
            doors += [group.create_task(by_link(f"link-{n}")) for n in range(4)]
            await waiting(5)  # a door asks the database one thing at a time
        await gate.close()
        told = [door.result() for door in doors]
        (won,) = [text for text in told if text.startswith("recorded: ")]
        name = won.rpartition(" ")[2]
        assert sum(f"already decided by {name}: yes" in text for text in told) == 7, told
        assert (await sql.until(job_id, "succeeded"))["result"] == f'{{"option":"yes","by":"{name}"}}'


async def test_an_answer_that_comes_while_the_question_is_still_announced_is_heard_at_once(
    database: str, sql: Sql, client: agentrt.Client
) -> None:
    announced = asyncio.Event()

    async def announce(question: Question) -> None:
        await announced.wait()

    @agent
    async def asker() -> str:
        return (await decide("Well?", ["yes", "no"], announce=announce)).option

    async with supervising(database, asker) as supervisor:
        job = await asker.send()
        decision_id = await decision_of(sql, job.id)
        (attempt,) = supervisor._runner.attempts.values()
        await client.decide(decision_id, "yes", by="ann")

        async def told() -> bool:
            return attempt.hints > 0

        await eventually(told)
        announced.set()
        assert await job.result(timeout_s=10) == "yes"  # the look behind lost hints comes after 30 s


async def test_a_question_whose_job_has_ended_takes_no_answer(database: str, sql: Sql, client: agentrt.Client) -> None:
    @agent
    async def asker() -> str:
        return (await decide("Well?", ["yes", "no"])).option

    async with supervising(database, asker):
        job = await asker.send()
        decision_id = await decision_of(sql, job.id)
        await job.cancel()
        await sql.until(job.id, "cancelled")
        with pytest.raises(DecisionRefused, match="its job has ended"):
            await client.decide(decision_id, "yes", by="ann")
        assert await sql.value("select answer from agentrt.decisions where id = $1", decision_id) is None


async def test_a_question_that_expired_is_asked_and_announced_anew_when_its_job_is_retried_by_hand(
    database: str, sql: Sql, client: agentrt.Client
) -> None:
    announced: list[int] = []
    patience = [0.1, 3_600.0]

    async def announce(question: Question) -> None:
        announced.append(question.id)

    @agent
    async def asker() -> str:
        return (await decide("Well?", ["yes", "no"], within_s=patience[len(announced)], announce=announce)).option

    async with supervising(database, asker):
        job = await asker.send()
        row = await sql.until(job.id, "failed")
        assert DecisionExpired.__name__ in row["last_error"]
        await client.store.retry(job.id)

        async def asked_anew() -> bool:
            return len(announced) == 2

        await eventually(asked_anew)
        with pytest.raises(DecisionRefused, match="no open question"):
            await client.decide(announced[0], "yes", by="ann")
        await client.decide(announced[1], "yes", by="ann")
        assert await job.result(timeout_s=10) == "yes"


async def test_a_step_that_failed_inside_a_step_is_run_again_with_it(
    database: str, sql: Sql, client: agentrt.Client
) -> None:
    ran: list[str] = []

    async def part(name: str) -> str:
        ran.append(name)
        if ran.count("second") == 1 and name == "second":
            raise ValueError("not yet")
        return name

    async def whole() -> list[Any]:
        return [await step(part, name, name=name) for name in ("first", "second", "third")]

    @agent(retry=agentrt.Retry(base_s=0.05))
    async def worker() -> list[Any]:
        done: list[Any] = await step(whole)
        return done

    async with supervising(database, worker):
        job = await worker.send()
        assert await job.result(timeout_s=10) == ["first", "second", "third"]
    assert ran == ["first", "second", "second", "third"]
