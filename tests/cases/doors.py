"""What the payload cases share: the command line as a door, and how a bad message that came as plain SQL must end."""

from __future__ import annotations

import agentrt
from tests.conftest import Start
from tests.support import Sql

one_line_chars_max = 400


async def refused_by_the_command_line(start: Start, sql: Sql, *arguments: str) -> str:
    """`agentrt send …` ends with a wrong-usage code, one line and nothing sent; returns the line."""
    before = await sql.value("select count(*) from agentrt.all_jobs")
    command = start("send", *arguments, name="send")
    code = await command.ended()
    lines = command.log().splitlines()
    assert (code, len(lines)) == (2, 1), command.log()
    assert len(lines[0]) < one_line_chars_max
    assert await sql.value("select count(*) from agentrt.all_jobs") == before
    return lines[0]


async def insert(sql: Sql, agent: str, payload: str) -> int:
    """A message by plain SQL, from somebody who checks nothing; returns the job's id."""
    job_id: int = await sql.value(
        "insert into agentrt.jobs(agent, payload) values ($1, $2::json) returning id", agent, payload
    )
    return job_id


async def failed_at_once(sql: Sql, job_id: int, reason: str) -> str:
    """The job ends as failed after its first attempt, for this reason, in one line; returns the line."""
    row = await sql.until(job_id, *(state.value for state in agentrt.State if state.final), within_s=15)
    error: str = row["last_error"]
    assert (row["state"], row["reason"], row["attempt_count"]) == ("failed", reason, 1), row
    assert "\n" not in error
    assert len(error) < one_line_chars_max
    return error
