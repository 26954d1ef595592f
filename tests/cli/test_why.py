"""`agentrt why`: one line that says what a job waits for."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime
from typing import Any

import pytest

from agentrt import agent
from agentrt.cli.reasons import why_line
from agentrt.client import Client
from tests.cli.conftest import Cli
from tests.conftest import supervising
from tests.support import Sql, eventually

waiting: dict[str, Any] = {
    "id": 57, "agent": "writer", "key": None, "state": "ready", "attempt": 0, "max_attempts": 5, "last_error": None,
    "cancel_reason": None, "due_in_s": -1.0, "lease_left_s": None, "host": None, "pid": None, "silent_s": None,
    "head_id": None, "workers": 1, "ahead": 0, "running": 0, "running_max": None, "full_workers": 0, "busy_workers": 0,
    "closed_workers": 0, "mine": 0, "slots": 10,
}  # fmt: skip
running = waiting | {"state": "running", "attempt": 2, "host": "box", "pid": 7, "silent_s": 3.0, "lease_left_s": 4.0}
ended: dict[str, Any] = {
    "state": "failed", "attempt_count": 5, "max_attempts": 5, "reason": "error", "last_error": "ValueError: no",
    "finished_at": datetime(2026, 1, 2, tzinfo=UTC),
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"workers": 0}, "no worker knows agent 'writer'"),
        ({"ahead": 1}, "one job is ahead of it"),
        ({"ahead": 1200}, "1,200 jobs are ahead of it"),
        ({}, "it waits for a free slot"),
        (
            {"running": 3, "running_max": 3},
            "the next of its agent; 3 of its agent run, as many as its limit over all processes allows (3)",
        ),
        (
            {"running": 3, "running_max": 3, "ahead": 2},
            "2 jobs are ahead of it in the queue of its agent, and 3 of its agent run, as many as its limit",
        ),
        ({"running": 2, "running_max": 3}, "it waits for a free slot"),
        (
            {"workers": 2, "full_workers": 2, "closed_workers": 2, "mine": 8},
            "8 of its agent run in the 2 processes that know it, as many as its concurrency allows",
        ),
        ({"busy_workers": 1, "closed_workers": 1}, "all 10 slots of the one process that knows its agent are in use"),
        (
            {"workers": 2, "full_workers": 1, "busy_workers": 1, "closed_workers": 2},
            "each of the 2 processes that know its agent runs as many of it as its concurrency allows, or has no free slot",
        ),
        ({"workers": 2, "full_workers": 1, "busy_workers": 1, "closed_workers": 1}, "it waits for a free slot"),
        ({"last_error": "Crashed: died"}, "the attempt before: Crashed: died"),
        ({"state": "scheduled", "due_in_s": 12.0}, "due in 12 s, as its sender asked"),
        ({"state": "scheduled", "due_in_s": math.inf}, "due in ∞"),
        (
            {"state": "scheduled", "due_in_s": 12.0, "attempt": 2, "last_error": "E: a\nb"},
            "due in 12 s (retry of attempt 2 of 5: E: a b)",
        ),
        ({"state": "scheduled", "due_in_s": 5.0, "last_error": "RetryAfter: slow"}, "put off by its agent (RetryAfter: slow)"),
        ({"state": "scheduled", "workers": 0}, "due since 1.0 s, a supervisor makes it ready"),
        ({"state": "parked", "due_in_s": math.inf}, "waits for a reply, a moment or a decision"),
        ({"state": "parked"}, "its wait has been over for 1.0 s"),
    ],
)  # fmt: skip
def test_why_says_what_an_unfinished_job_waits_for(change: dict[str, Any], expected: str) -> None:
    line = why_line(waiting | change, None, None)
    assert expected in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "leased to box:7, attempt 2 of 5, lease ends in 4.0 s, its supervisor's last beat was 3.0 s ago"),
        ({"cancel_reason": "too slow"}, "cancel asked for (too slow), waiting for its coroutine to stop"),
        ({"lease_left_s": -5.0}, "lease ran out 5.0 s ago; the next sweep of a running supervisor takes it back"),
        ({"lease_left_s": -5.0, "cancel_reason": "x"}, "the next sweep of a running supervisor cancels it (x)"),
        ({"lease_left_s": -5.0, "workers": 0}, "no worker knows agent 'writer'"),
        ({"host": None, "silent_s": None}, "leased to a supervisor that has signed off"),
    ],
)
def test_why_says_who_runs_a_job_and_for_how_long(change: dict[str, Any], expected: str) -> None:
    assert expected in why_line(running | change, None, None)


def waits(*changes: dict[str, Any]) -> list[dict[str, Any]]:
    row = {
        "step": "fetch#0", "kind": "ask", "tries": 0, "failure": None, "child": 57, "child_agent": "critic",
        "child_state": "running", "decision": None, "question": None, "due_in_s": None, "waits": len(changes),
    }  # fmt: skip
    return [row | change for change in changes]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "waits for a reply of job 57 (critic, running)"),
        ({"due_in_s": 20.0}, "(critic, running), 20 s left"),
        ({"due_in_s": -1.0}, "(critic, running), its time is up"),
        ({"child_state": None, "child_agent": None}, "a reply of job 57, which has ended"),
        ({"kind": "sleep", "due_in_s": 12.0}, "sleeps, due in 12 s"),
        ({"kind": "decide", "decision": 9, "question": "Publish\nit?"}, "a decision: question 9, 'Publish it?'"),
        (
            {"kind": "step", "tries": 2, "due_in_s": 8.0, "failure": '{"kind": "ValueError", "text": "no"}'},
            "step fetch#0 tries again in 8.0 s (after 2 tries: ValueError: no)",
        ),
    ],
)
def test_why_says_what_the_steps_of_a_job_wait_for(change: dict[str, Any], expected: str) -> None:
    parked = waiting | {"state": "parked"}
    assert why_line(parked, None, None, waits(change)).endswith(expected)
    warm = why_line(running, None, None, waits(change))
    assert expected in warm
    assert warm.endswith("its supervisor's last beat was 3.0 s ago")
    many = why_line(parked, None, None, waits(*[change] * 10))
    assert many.endswith("and 7 more")
    assert many.count(expected) == 3


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (running | {"id": 41}, "key 'k' is held by job 41 (running on box:7)"),
        (
            waiting | {"id": 41, "state": "scheduled", "due_in_s": 9.0, "attempt": 1, "last_error": "E: x"},
            "held by job 41 (due in 9.0 s (retry of attempt 1 of 5: E: x))",
        ),
        (None, "has just been set free"),
    ],
)
def test_why_names_the_job_that_holds_the_key(head: dict[str, Any] | None, expected: str) -> None:
    blocked = waiting | {"state": "blocked", "key": "k", "head_id": 41}
    assert expected in why_line(blocked, head, None)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "attempts used up (5 of 5), the last of error: ValueError: no"),
        ({"reason": "crashed", "attempt_count": 2}, "crashed: ValueError: no"),
        ({"reason": "fatal", "attempt_count": 1}, "without a retry, the agent gave up: ValueError: no"),
        ({"reason": "invalid", "attempt_count": 1}, "does not fit the agent's schema"),
        ({"state": "succeeded", "attempt_count": 2}, "succeeded at "),
        ({"state": "cancelled", "last_error": "Cancelled: too slow"}, ": too slow"),
        ({"last_error": "x" * 8000}, "xxx…"),
    ],
)
def test_why_says_how_a_job_ended(change: dict[str, Any], expected: str) -> None:
    line = why_line(None, None, ended | change)
    assert expected in line
    assert len(line) < 350


async def test_why_reads_the_rows_of_a_real_database(cli: Cli, sql: Sql) -> None:
    """One job of each kind, made with plain SQL; the key's second is behind its first."""
    supervisor = await sql.value(
        "insert into agentrt.supervisors(id, host, pid, agents, slots) values (gen_random_uuid(), 'box', 7, '{a}', 1)"
        " returning id"
    )
    insert = "insert into agentrt.jobs(agent, key, run_after) values ($1, $2, now() + make_interval(secs => $3)) returning id"
    head, blocked = [await sql.value(insert, "a", "k", 0) for _ in range(2)]
    unknown, delayed, cancelled = [
        await sql.value(insert, *job) for job in (("b", None, 0), ("a", None, 600), ("a", None, 600))
    ]
    await sql.run(
        "update agentrt.jobs set status = 'running', supervisor = $2, attempt = 1, fence = 1,"
        " lease_expires = now() + interval '1 hour' where id = $1", head, supervisor,
    )  # fmt: skip
    await sql.value("select agentrt.cancel($1, 'no need', true)", cancelled)
    ids = {
        head: ("running", "leased to box:7"),
        blocked: ("blocked", f"key 'k' is held by job {head} (running on box:7)"),
        unknown: ("ready", "no worker knows agent 'b'"),
        delayed: ("scheduled", "due in 10 min"),
        cancelled: ("cancelled", "no need"),
    }
    answers = await asyncio.gather(
        *(cli("why", job_id, "--json") for job_id in ids), cli("why", 10**9), cli("why", head)
    )
    for answer, (job_id, (state, expected)) in zip(answers, ids.items(), strict=False):
        assert (answer.value["id"], answer.value["state"]) == (job_id, state)
        assert expected in answer.value["why"]
    assert "There is no job 1000000000" in answers[-2].refused(1)
    assert answers[-1].out.startswith(f"job {head} is running: leased to box:7")


async def test_why_tells_a_full_limit_from_a_full_process_and_from_neither(
    cli: Cli, client: Client, sql: Sql, database: str
) -> None:
    release = asyncio.Event()

    @agent(limit=1)
    async def limited() -> None:
        await release.wait()

    @agent(concurrency=2)
    async def paired() -> None:
        await release.wait()

    @agent
    async def free() -> None:
        await release.wait()

    async with supervising(database, limited, paired, free, slots=4) as supervisor:
        jobs = [await address.send() for address in (limited, limited, paired, paired, paired, free)]

        async def all_that_may() -> bool:
            registered = await sql.value("select count(*) from agentrt.supervisors")
            return bool(registered and supervisor.running_jobs == 4)

        await eventually(all_that_may)
        beside = await free.send()
        answers = [(await cli("why", job.id)).out for job in (jobs[1], jobs[4], beside)]
        release.set()
    assert "1 of its agent run, as many as its limit over all processes allows (1)" in answers[0]
    assert "2 of its agent run in the one process that knows it, as many as its concurrency allows" in answers[1]
    assert "all 4 slots of the one process that knows its agent are in use" in answers[2]
