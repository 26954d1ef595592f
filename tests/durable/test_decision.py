"""Decisions: the first valid answer is the outcome; nobody's answer has its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import agentrt
from agentrt import Question, Retry, agent, current, decide
from agentrt.context import running
from tests.conftest import supervising
from tests.support import Sql, eventually

quick = Retry(max_attempts=3, base_s=0.01, factor=1)


async def _open(client: agentrt.Client, count: int = 1) -> list[dict[str, Any]]:
    async def look() -> list[dict[str, Any]]:
        rows = await client.store.decisions()
        return rows if len(rows) == count else []

    return await eventually(look)


@pytest.mark.parametrize("warm_s", [60.0, 0.1])
async def test_the_first_valid_answer_counts_and_later_ones_hear_by_whom(
    database: str, client: agentrt.Client, sql: Sql, warm_s: float
) -> None:
    announced: list[int] = []

    async def announce(question: Question) -> None:
        announced.append(question.id)

    @agent(retry=quick)
    async def asker() -> list[str | None]:
        answer = await decide("Publish?", ["yes", "no"], who=["ann", "bob"], announce=announce)
        if current().attempt == 1:
            raise RuntimeError("again")
        return [answer.option, answer.by, str(answer.at.tzinfo)]

    async with supervising(database, asker, warm_s=warm_s):
        job = await asker.send()
        (question,) = await _open(client)
        if warm_s < 1:
            await sql.until(job.id, "parked")
        for option, by, text in (("maybe", "ann", "none of its options: yes, no"), ("yes", "eve", "only ann, bob")):
            with pytest.raises(agentrt.DecisionRefused, match=text):
                await client.decide(question["id"], option, by=by)
        answers = await asyncio.gather(
            *(client.decide(question["id"], "yes", by=by) for by in ("ann", "bob") for _ in range(5)),
            return_exceptions=True,
        )
        refused = [answer for answer in answers if answer is not None]
        assert len(refused) == 9
        chosen, who, _zone = await job.result(timeout_s=20)
        assert chosen == "yes"
        assert {str(answer) for answer in refused} == {f"Question {question['id']}: already decided by {who}: yes."}
    assert announced == [question["id"]]
    (row,) = await sql.rows("select answer, answered_by, answered_at is not null as at from agentrt.decisions")
    assert row == {"answer": "yes", "answered_by": who, "at": True}


@pytest.mark.parametrize("warm_s", [60.0, 0.1])
async def test_one_that_expires_gives_the_default_or_its_error(
    database: str, client: agentrt.Client, sql: Sql, warm_s: float
) -> None:
    seen: list[list[Any]] = []

    @agent(retry=quick)
    async def asker() -> None:
        answer = await decide("Publish?", ["yes", "no"], within_s=0.4, default="no")
        try:
            await decide("And this?", ["yes", "no"], within_s=0.1)
        except agentrt.DecisionExpired as error:
            seen.append([answer, str(error)])
        if current().attempt == 1:
            raise RuntimeError("again")

    @agent(retry=quick)
    async def lost() -> None:
        await decide("And that?", ["yes", "no"], within_s=0.1)

    async with supervising(database, asker, lost, warm_s=warm_s):
        await asker.ask()
        with pytest.raises(agentrt.JobFailed, match=r"DecisionExpired: Nobody answered within 0\.1 s: And that"):
            await lost.ask()
    assert seen[0] == seen[1]
    answer, text = seen[0]
    assert (answer.option, answer.by) == ("no", None)
    assert text == "Nobody answered within 0.1 s: And this?"
    (first, *_) = await sql.rows("select id from agentrt.decisions order by id")
    with pytest.raises(agentrt.DecisionRefused, match="its job has ended"):
        await client.decide(first["id"], "yes", by="ann")


async def test_an_answer_after_the_job_has_ended_is_refused(database: str, client: agentrt.Client, sql: Sql) -> None:
    @agent(retry=quick)
    async def asker() -> str:
        return (await decide("Publish?", ["yes", "no"])).option

    async with supervising(database, asker):
        job = await asker.send()
        (question,) = await _open(client)
        await job.cancel("enough")
        await sql.until(job.id, "cancelled")
        with pytest.raises(agentrt.DecisionRefused, match="its job has ended"):
            await client.decide(question["id"], "yes", by="ann")
        with pytest.raises(agentrt.DecisionRefused, match="There is no open question"):
            await client.decide(10**9, "yes", by="ann")


async def test_a_question_is_also_answered_by_the_id_of_the_job_that_asks_it(
    database: str, client: agentrt.Client
) -> None:
    @agent(retry=quick)
    async def asker() -> list[str]:
        return [(await decide(f"{number}?", ["yes", "no"])).option for number in range(2)]

    async with supervising(database, asker):
        job = await asker.send()
        for option in ("yes", "no"):
            await _open(client)
            await client.decide(job.id, option, by="ann")
        assert await job.result(timeout_s=20) == ["yes", "no"]


async def test_an_answer_that_comes_before_the_wait_for_it_is_not_missed(database: str, client: agentrt.Client) -> None:
    async def answer_at_once(question: Question) -> None:
        attempt = running.get()
        assert attempt is not None

        async def heard() -> bool:
            return attempt.hints > 0

        await client.decide(question.id, "yes", by="ann")
        await eventually(heard)

    @agent(retry=quick)
    async def asker() -> str:
        return (await decide("Publish?", ["yes", "no"], announce=answer_at_once)).option

    async with supervising(database, asker, poll_s=600):
        assert await asker.options(timeout_s=10).ask() == "yes"
