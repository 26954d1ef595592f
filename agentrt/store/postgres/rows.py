"""Rows to values, and values to the columns of a statement."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, TypeVar, cast

import asyncpg

from agentrt.codec import parse
from agentrt.errors import LeaseLost
from agentrt.model import (
    Claimed,
    Failure,
    Finish,
    JobRow,
    NewJob,
    Reschedule,
    Sender,
    Sent,
    StepMark,
    StepRecord,
    StepState,
    Taken,
    Wanted,
)

T = TypeVar("T")

_claim_order = attrgetter("priority", "ord")
_lock_order = attrgetter("id")


def claimed(values: Iterable[Any]) -> Claimed:
    """A job from the columns of a claim, which are its fields in their order; the steps are their text, or null."""
    job = Claimed(*values)
    text: Any = job.steps
    job.steps = _steps(text) if text else {}
    return job


def claimed_jobs(rows: Iterable[Iterable[Any]], wanted: Wanted) -> list[Claimed]:
    """What a claim returned, in the order in which it is to be started."""
    jobs = [claimed(row) for row in rows]
    limited = {policy.name for policy, _ in wanted.agents if policy.limit is not None}
    if limited:
        for job in jobs:
            job.limited = job.agent in limited
    jobs.sort(key=_claim_order)
    return jobs


def _steps(text: str) -> dict[str, StepState]:
    """The recorded steps that came with a claim (see steps_json)."""
    now = time.monotonic()
    steps = {}
    for step, kind, done, output, failure, fingerprint, place, due_s, tries, child in cast("list[Any]", parse(text)):
        due = None if due_s is None else now + due_s
        steps[step] = StepState(kind, done, output, failure, due, tries, child, StepMark(step, fingerprint, place))
    return steps


def lost(owner: Sender) -> LeaseLost:
    return LeaseLost(f"job {owner.job_id}, fence {owner.fence}")


def owned(row: JobRow, owner: Sender) -> JobRow:
    if not row["owned"]:
        raise lost(owner)
    return row


def step_state(row: JobRow, record: StepRecord) -> StepState:
    due = None if row["due_s"] is None else time.monotonic() + row["due_s"]
    return StepState(
        *(record.kind, row["done"], row["output"], row["failure"], due, record.tries, row.get("child"), record.mark),
        row.get("exceeded"),
    )


def mailbox_order(jobs: Sequence[NewJob]) -> list[int]:
    """The places of messages in the order in which mailboxes are locked; those of one mailbox, and of none, keep theirs."""
    return sorted(range(len(jobs)), key=lambda n: _mailbox(jobs[n]))


def back_in_place(order: Sequence[int], answers: Sequence[T]) -> list[T]:
    """What came in this order of places, in the order of the places."""
    by_place = dict(zip(order, answers, strict=True))
    return [by_place[place] for place in range(len(order))]


def _mailbox(job: NewJob) -> tuple[bytes, bytes]:
    return (b"", b"") if job.key is None else (job.agent.encode(), job.key.encode())


def locked_by(jobs: Sequence[NewJob], sender: Sender | None) -> set[tuple[str, ...]]:
    """What their insert locks until it is committed: mailboxes, dedup keys, and the budget that pays."""
    mailboxes = {(job.agent, job.key) for job in jobs if job.key is not None}
    dedups = {("dedup", job.agent, job.dedup) for job in jobs if job.dedup is not None}
    return mailboxes | dedups | paid_by(sender)


def paid_by(sender: Sender | None) -> set[tuple[str, ...]]:
    return set() if sender is None or sender.account is None else {("budget", str(sender.account), "")}


def column(values: list[Any], usual: Any = None) -> list[Any] | None:
    """An array for a statement; null when every value is the usual one, which `unnest` and the statement make of it."""
    return None if values.count(usual) == len(values) else values


def sent(row: asyncpg.Record) -> Sent:
    taken = Taken(row["key_state"], row["deadline_s"], row["leased_s"]) if row["taken"] else None
    return Sent(row["id"], row["existed"], taken)


def sent_columns(jobs: Sequence[NewJob]) -> dict[str, Any]:
    return {
        "agents": [job.agent for job in jobs],
        "keys": column([job.key for job in jobs]),
        "priorities": column([job.priority for job in jobs], 5),
        "delays": column([job.delay_s for job in jobs], 0.0),
        "run_ats": column([job.run_at for job in jobs]),
        "max_attempts": column([job.max_attempts for job in jobs]),
        "payloads": [job.payload.decode() for job in jobs],
        "watched": column([job.watched for job in jobs], False),
        "deadlines": column([job.deadline_s for job in jobs]),
    }


def sent_values(job: NewJob) -> dict[str, Any]:
    """As `sent_columns`, of one message."""
    return {
        "agent": job.agent,
        "key": job.key,
        "priority": job.priority,
        "delay_s": job.delay_s,
        "run_at": job.run_at,
        "max_attempts": job.max_attempts,
        "payload": job.payload.decode(),
        "watched": job.watched,
        "deadline_s": job.deadline_s,
    }


def step_columns(jobs: Sequence[NewJob], sender: Sender | None) -> dict[str, Any]:
    """What a message has besides, that is a step of an attempt or has a dedup key."""
    takes = sender.takes if sender is not None else None
    policy = takes.agents[0][0] if takes is not None else None
    return {
        "dedups": column([job.dedup for job in jobs]),
        "parent": sender and sender.job_id,
        "fence": sender and sender.fence,
        "supervisor": takes and takes.supervisor,
        "lease": policy and policy.lease_s,
        "attempts": policy and policy.max_attempts,
        "floors": takes and takes.floors,
        **_own_step_columns(jobs),
    }


def shared_columns(items: Sequence[tuple[Sender, NewJob]]) -> dict[str, Any]:
    """Messages of attempts, one each."""
    jobs = [job for _, job in items]
    return sent_columns(jobs) | {
        "parents": [sender.job_id for sender, _ in items],
        "fences": [sender.fence for sender, _ in items],
        **_own_step_columns(jobs),
    }


def _own_step_columns(jobs: Sequence[NewJob]) -> dict[str, Any]:
    return {
        "steps": [job.step and job.step.id for job in jobs],
        "fingerprints": [job.step and job.step.fingerprint for job in jobs],
        "places": [job.step and job.step.place for job in jobs],
        "asks": column([job.asks for job in jobs], False),
        "timeouts": column([job.timeout_s for job in jobs]),
    }


def wanted_columns(wanted: Wanted) -> dict[str, Any]:
    return {
        "supervisor": wanted.supervisor,
        "agents": [policy.name for policy, _ in wanted.agents],
        "limits": [limit for _, limit in wanted.agents],
        "global": [policy.limit for policy, _ in wanted.agents],
        "max_attempts": [policy.max_attempts for policy, _ in wanted.agents],
        "leases": [policy.lease_s for policy, _ in wanted.agents],
        "floors": wanted.floors,
        "total": wanted.total,
        "alone": wanted.alone,
    }


def finished_columns(outcomes: Sequence[Finish]) -> dict[str, Any]:
    outcomes = sorted(outcomes, key=_lock_order)  # the order in which everybody locks jobs
    reasons, kinds, texts, tracebacks = failure_columns([outcome.failure for outcome in outcomes])
    reopen_ids, reopen_steps = reopened(outcomes)
    return {
        "ids": [outcome.id for outcome in outcomes],
        "fences": [outcome.fence for outcome in outcomes],
        "states": column([outcome.state for outcome in outcomes], "succeeded"),
        "results": [outcome.result for outcome in outcomes],
        "reasons": reasons,
        "kinds": kinds,
        "texts": texts,
        "tracebacks": tracebacks,
        "counts": column([outcome.counts for outcome in outcomes], True),
        "key_states": column([outcome.key_state for outcome in outcomes]),
        "reopen_ids": reopen_ids,
        "reopen_steps": reopen_steps,
    }


def recorded_columns(steps: Sequence[tuple[Sender, StepRecord]]) -> dict[str, Any]:
    records = [record for _, record in steps]
    money = any(record.usd is not None or record.tokens is not None for record in records)
    return {
        "ids": [owner.job_id for owner, _ in steps],
        "fences": [owner.fence for owner, _ in steps],
        "steps": [record.mark.id for record in records],
        "kinds": column([record.kind for record in records], "step"),
        "dones": column([record.done for record in records], True),
        "outputs": column([record.output for record in records]),
        "failures": column([record.failure for record in records]),
        "fingerprints": column([record.mark.fingerprint for record in records]),
        "places": column([record.mark.place for record in records]),
        "waits": column([record.wait_s for record in records]),
        "tries": column([record.tries for record in records], 0),
        "usd": [str(record.usd or 0) for record in records] if money else None,
        "tokens": [record.tokens or 0 for record in records] if money else None,
        "covered_usd": [str(record.covered_usd) for record in records] if money else None,
        "covered_tokens": [record.covered_tokens for record in records] if money else None,
    }


def reopened(outcomes: Sequence[Finish] | Sequence[Reschedule]) -> tuple[list[int], list[str]]:
    pairs = [(outcome.id, step) for outcome in outcomes for step in outcome.reopen]
    return [job_id for job_id, _ in pairs], [step for _, step in pairs]


def failure_columns(failures: Sequence[Failure | None]) -> tuple[list[str | None] | None, ...]:
    """The failure columns: reason, kind, text, traceback; all null where nothing failed."""
    if not any(failures):
        return None, None, None, None
    return (
        [failure.reason if failure else None for failure in failures],
        [failure.kind if failure else None for failure in failures],
        [failure.text if failure else None for failure in failures],
        [failure.traceback if failure else None for failure in failures],
    )
