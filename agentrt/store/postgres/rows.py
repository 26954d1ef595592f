"""Rows to values, and values to the columns of a statement."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

import asyncpg

from agentrt.codec import parse
from agentrt.errors import LeaseLost
from agentrt.model import Claimed, Failure, Finish, JobRow, Reschedule, Sender, StepMark, StepRecord, StepState


def claimed(row: asyncpg.Record, limited: set[str]) -> Claimed:
    return Claimed(
        id=row["id"],
        fence=row["fence"],
        agent=row["agent"],
        key=row["key"],
        attempt=row["attempt"],
        max_attempts=row["max_attempts"],
        payload=row["payload"],
        priority=row["priority"],
        ord=row["ord"],
        root=row["root"],
        hops=row["hops"],
        deadline_s=row["deadline_s"],
        account=row["account"],
        alone=row["alone"],
        lease_s=row["lease_s"],
        waited_s=row["waited_s"],
        limited=row["agent"] in limited,
        key_state=row["state"],
        steps={} if row["steps"] is None else _steps(row["steps"]),
    )


def _steps(text: str) -> dict[str, StepState]:
    """The recorded steps that came with a claim (see steps_json)."""
    now = time.monotonic()
    steps = {}
    for step, kind, done, output, failure, fingerprint, place, due_s, tries, child in cast("list[Any]", parse(text)):
        due = None if due_s is None else now + due_s
        steps[step] = StepState(kind, done, output, failure, due, tries, child, StepMark(step, fingerprint, place))
    return steps


def owned(row: JobRow, owner: Sender) -> JobRow:
    if not row["owned"]:
        raise LeaseLost(f"job {owner.job_id}, fence {owner.fence}")
    return row


def step_state(row: JobRow, record: StepRecord) -> StepState:
    due = None if row["due_s"] is None else time.monotonic() + row["due_s"]
    return StepState(
        *(record.kind, row["done"], row["output"], row["failure"], due, record.tries, row.get("child"), record.mark),
        row.get("exceeded"),
    )


def reopened(outcomes: Sequence[Finish] | Sequence[Reschedule]) -> tuple[list[int], list[str]]:
    pairs = [(outcome.id, step) for outcome in outcomes for step in outcome.reopen]
    return [job_id for job_id, _ in pairs], [step for _, step in pairs]


def failure_columns(failures: Sequence[Failure | None]) -> tuple[list[str | None], ...]:
    """The failure columns: reason, kind, text, traceback."""
    return (
        [failure.reason if failure else None for failure in failures],
        [failure.kind if failure else None for failure in failures],
        [failure.text if failure else None for failure in failures],
        [failure.traceback if failure else None for failure in failures],
    )
