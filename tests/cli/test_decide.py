"""`agentrt decide`: the open questions, and answers that count once."""

from __future__ import annotations

import asyncio
import getpass

import pytest

import agentrt
from agentrt import agent
from agentrt.client import Client
from agentrt.errors import DecisionRefused
from tests.cli.conftest import Cli, Here
from tests.conftest import supervising
from tests.support import Sql, eventually


@agent
async def publisher(text: str) -> str:
    answer = await agentrt.decide(f"Publish {text}?", ["yes", "no"])
    return f"{answer.option} by {answer.by}"


@agent
async def careful(text: str) -> list[str]:
    asked = [
        agentrt.decide(f"Publish {text}?", ["yes", "no"], who=["alice"], within_s=3600, default="no"),
        agentrt.decide("Really?", ["yes", "no"]),
    ]
    return [answer.option for answer in await asyncio.gather(*asked)]


async def questions(sql: Sql, job_id: int, count: int = 1) -> list[int]:
    async def look() -> list[int]:
        rows = await sql.rows("select id from agentrt.decisions where job_id = $1 order by step", job_id)
        return [row["id"] for row in rows] if len(rows) == count else []

    return await eventually(look)


async def test_the_first_answer_counts_and_a_later_one_hears_whose_it_was(
    cli: Cli, client: Client, database: str, sql: Sql
) -> None:
    async with supervising(database, publisher):
        job = await publisher.send("otters")
        (question,) = await questions(sql, job.id)
        no_option = await cli("decide", job.id, "perhaps")
        assert "'perhaps' is none of its options: yes, no" in no_option.refused(1)
        answered = await cli("decide", job.id, "yes", "--by", "alice")
        assert (answered.code, answered.out) == (0, f"{job.id}: decided 'yes', by alice\n")
        assert await job.result(timeout_s=30) == "yes by alice"
        for number in (question, job.id):
            late = await cli("decide", number, "no", "--by", "bob")
            assert "already decided by alice: yes" in late.refused(1)


async def test_an_answer_without_a_name_is_of_who_is_logged_in(
    cli: Cli, client: Client, database: str, sql: Sql
) -> None:
    async with supervising(database, publisher):
        job = await publisher.send("otters")
        (question,) = await questions(sql, job.id)
        answered = await cli("decide", question, "no", "--json")
        assert answered.value == {"id": question, "option": "no", "by": getpass.getuser()}
        assert await job.result(timeout_s=30) == f"no by {getpass.getuser()}"


async def test_the_open_questions_are_listed_with_all_that_an_answer_needs(
    cli: Cli, client: Client, database: str, sql: Sql
) -> None:
    none = await cli("decide")
    assert (none.code, none.out) == (0, "")
    assert "no question is open" in none.err
    async with supervising(database, publisher, careful):
        first = await publisher.send("otters")
        (easy,) = await questions(sql, first.id)
        second = await careful.send("bats")
        limited, other = await questions(sql, second.id, 2)
        value, table, cut = await asyncio.gather(cli("decide", "--json"), cli("decide"), cli("decide", "--limit", "1"))
        rows = {row["id"]: row for row in value.value}
        assert list(rows) == sorted([easy, limited, other])
        assert (rows[easy]["job_id"], rows[easy]["question"]) == (first.id, "Publish otters?")
        assert (rows[easy]["options"], rows[easy]["who"], rows[easy]["expires"]) == (["yes", "no"], None, None)
        assert (rows[limited]["who"], rows[limited]["default"]) == (["alice"], "no")
        lines = {int(line.split()[0]): line for line in table.out.splitlines()[1:]}
        assert "in 60min: no" in lines[limited]
        assert "alice" in lines[limited]
        assert "anybody" in lines[easy]
        assert lines[easy].endswith("yes | no  Publish otters?")
        assert len(cut.out.splitlines()) == 2
        assert "--limit shows more" in cut.err
        ambiguous, stranger = await asyncio.gather(
            cli("decide", second.id, "yes", "--by", "alice"), cli("decide", limited, "yes", "--by", "bob")
        )
        both = ", ".join(
            f"{number} {text!r}" for number, text in sorted([(limited, "Publish bats?"), (other, "Really?")])
        )
        assert f"asks 2 questions: {both}" in ambiguous.refused(1)  # asked at once, they are stored in any order
        assert "bob may not answer it, only alice" in stranger.refused(1)
        for question in (limited, other):
            assert (await cli("decide", question, "yes", "--by", "alice")).code == 0
        assert await second.result(timeout_s=30) == ["yes", "yes"]
        await first.cancel()
        await sql.until(first.id, "cancelled")
        closed = await cli("decide", easy, "yes")
        assert "its job has ended" in closed.refused(1)


async def test_a_question_that_is_asked_again_is_a_new_one(cli: Cli, client: Client, database: str, sql: Sql) -> None:
    """Its step was forgotten: the answer that it had, and the links to it, count no more."""
    async with supervising(database, publisher):
        job = await publisher.send("otters")
        (old,) = await questions(sql, job.id)
        await job.cancel()
        await sql.until(job.id, "cancelled")
        assert (await cli("retry", job.id, "--from", "decide#0")).code == 0

        async def look() -> int | None:
            new: int | None = await sql.value(
                "select id from agentrt.decisions where job_id = $1 and id > $2", job.id, old
            )
            return new

        new = await eventually(look)
        with pytest.raises(DecisionRefused, match="no open question"):
            await client.decide(old or 0, "no", by="bob")
        assert new is not None
        await client.decide(new, "yes", by="alice")
        assert await job.result(timeout_s=30) == "yes by alice"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["decide", "9"], "Which option? agentrt decide 9 OPTION"),
        (["decide", "x", "yes"], "'x' is no job id"),
        (["decide", "9", "yes", "--by", ""], "--by is ''"),
        (["decide", "--limit", "0"], "--limit is 0"),
    ],
)
def test_what_cannot_be_an_answer_is_wrong_usage(words: list[str], expected: str, here: Here) -> None:
    assert expected in here(*words).refused(2)


async def test_no_such_question_is_exit_code_1(cli: Cli) -> None:
    assert "There is no open question 9." in (await cli("decide", "9", "yes")).refused(1)
