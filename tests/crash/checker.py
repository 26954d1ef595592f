"""The history checker: from what a chaos run left behind it proves that every promise was kept, or lists those that were not.

It reads two independent witnesses: the tables, and the ledger that the agents wrote themselves.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Row = dict[str, Any]
parents = {"stepping": ("first#0", "second#0"), "asking": ("first#0",)}  # the agents that send a child, and their steps
first_step = "first#0"


@dataclass(frozen=True, slots=True)
class SentJob:
    """A message of the run, in the order in which the sends of its key were committed."""

    id: int
    agent: str
    key: str | None
    n: int


@dataclass(slots=True)
class Evidence:
    """What a run left behind. `notes` are in the order in which they were written."""

    sent: list[SentJob]
    history: list[Row]
    attempts: list[Row]
    steps: list[Row]
    unfinished: list[Row] = field(default_factory=list)
    notes: list[Row] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)  # of the supervisors: what must not happen whoever is killed


def check(evidence: Evidence) -> list[str]:
    """The violations, one line each; none: everything held."""
    found = [
        *nothing_is_lost(evidence),
        *every_end_is_the_right_one(evidence),
        *attempts_add_up(evidence),
        *no_job_completes_twice(evidence),
        *a_step_is_recorded_once(evidence),
        *a_child_is_sent_once(evidence),
        *keys_keep_their_order(evidence),
    ]
    return found + [f"a supervisor complained: {line}" for line in evidence.complaints]


def by_job(rows: Iterable[Row], name: str) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        found[row[name]].append(row)
    return found


# ------------------------------------------------------------------ jobs


def nothing_is_lost(evidence: Evidence) -> Iterator[str]:
    counts = Counter(row["id"] for row in evidence.history)
    for job_id, count in counts.items():
        if count > 1:
            yield f"job {job_id} is in history {count} times"
    for row in evidence.unfinished:
        yield f"job {row['id']} ({row['agent']}) is unfinished: {row['status']}"
    for job in evidence.sent:
        if job.id not in counts and all(row["id"] != job.id for row in evidence.unfinished):
            yield f"job {job.id} ({job.agent}) is lost: neither in jobs nor in history"
    known = {job.id for job in evidence.sent} | {row["id"] for row in evidence.history if row["agent"] == "child"}
    known |= {row["id"] for row in evidence.unfinished}
    for job_id in counts.keys() - known:
        yield f"job {job_id} is in history, but nobody sent it"
    for what, rows in (("attempt", evidence.attempts), ("step", evidence.steps)):
        for job_id in {row["job_id"] for row in rows} - known:
            yield f"a record of an {what} belongs to job {job_id}, which nobody sent"


def every_end_is_the_right_one(evidence: Evidence) -> Iterator[str]:
    steps = {(row["job_id"], row["step"]): row["output"] for row in evidence.steps}
    payloads = {job.id: job.n for job in evidence.sent}
    for row in evidence.history:
        job_id, agent, result = row["id"], row["agent"], row["result"]
        state = "failed" if agent == "doomed" else "succeeded"
        if row["state"] != state:
            yield f"job {job_id} ({agent}) ended as {row['state']} ({row['reason']}: {row['last_error']}), not {state}"
            continue
        expected: Any = payloads.get(job_id)
        if agent == "doomed":
            expected = None
        elif agent == "child":
            expected = json.loads(row["payload"])["token"]
        elif agent == "asking":
            expected = _decoded(steps.get((job_id, first_step)))
        elif agent == "stepping":
            expected = [_decoded(steps.get((job_id, step))) for step in parents[agent]]
        if _decoded(result) != expected:
            yield f"job {job_id} ({agent}) has the result {result}, not {expected!r}"


def _decoded(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def attempts_add_up(evidence: Evidence) -> Iterator[str]:
    """The attempt of a job that succeeded is one more than its failed ones, of one that failed just as many; each claim
    took a higher fence, and (nothing was handed back in a run of kills) each fence was an attempt."""
    failed = by_job(evidence.attempts, "job_id")
    for row in evidence.history:
        job_id = row["id"]
        rows = sorted(failed[job_id], key=lambda attempt: attempt["fence"])
        count = len(rows) + (row["state"] == "succeeded")
        if row["attempt"] != count:
            reasons = [attempt["reason"] for attempt in rows]
            yield f"job {job_id} ({row['agent']}) says attempt {row['attempt']}, its attempts are {count}: {reasons}"
        numbers = [attempt["attempt"] for attempt in rows] + [row["attempt"]] * (row["state"] == "succeeded")
        fences = [attempt["fence"] for attempt in rows] + [row["fence"]] * (row["state"] == "succeeded")
        if any(later <= earlier for earlier, later in pairwise(fences)):
            yield f"job {job_id}: its fences do not rise: {fences}"
        if numbers != list(range(1, len(numbers) + 1)) or fences != numbers or fences[-1:] != [row["fence"]]:
            yield f"job {job_id}: attempts {numbers} and fences {fences} (last {row['fence']}) do not match"
        for attempt in rows:
            if attempt["reason"] not in ("crashed", "error"):
                yield f"job {job_id}: attempt {attempt['attempt']} failed for the reason {attempt['reason']}"


def no_job_completes_twice(evidence: Evidence) -> Iterator[str]:
    """By the ledger: no attempt began twice, none after the one that history names, and that one alone completed."""
    notes = by_job(evidence.notes, "job")
    ends = {row["id"]: row for row in evidence.history}
    for job_id, lines in notes.items():
        if job_id not in ends:
            continue  # nothing_is_lost has said so
        last, state = ends[job_id]["fence"], ends[job_id]["state"]
        for kind in ("start", "end"):
            for fence, count in Counter(line["fence"] for line in lines if line["kind"] == kind).items():
                if count > 1:
                    yield f"job {job_id}: attempt under fence {fence} has {count} notes of its {kind}"
        later = [line["fence"] for line in lines if line["fence"] > last]
        if later:
            yield f"job {job_id} ended under fence {last}, but ran on under {sorted(set(later))}"
        if state == "succeeded" and last not in [line["fence"] for line in lines if line["kind"] == "end"]:
            yield f"job {job_id} succeeded under fence {last}, but that attempt never wrote its end"
    for job_id in ends.keys() - notes.keys():
        if ends[job_id]["state"] == "succeeded":  # a failed one may have been killed each time before its first line
            yield f"job {job_id} has succeeded, but never ran"


# ------------------------------------------------------------------ steps, children, keys


def a_step_is_recorded_once(evidence: Evidence) -> Iterator[str]:
    recorded: dict[tuple[int, str], list[Row]] = defaultdict(list)
    for row in evidence.steps:
        recorded[row["job_id"], row["step"]].append(row)
    for (job_id, step), rows in recorded.items():
        if len(rows) > 1:
            yield f"job {job_id}: step {step} is recorded {len(rows)} times"
    for row in evidence.history:
        for step in parents.get(row["agent"], ()):
            if (row["id"], step) not in recorded:
                yield f"job {row['id']} succeeded without a record of its step {step}"
    seen_under: dict[tuple[int, str], int] = {}
    for note in evidence.notes:
        if note["kind"] != "saw":
            continue
        at = note["job"], f"{note['step']}#0"
        seen_under[at] = min(note["fence"], seen_under.get(at, note["fence"]))
        for row in recorded[at]:
            if json.loads(row["output"]) != note["value"]:
                yield f"job {at[0]}: fence {note['fence']} saw {note['value']} as step {at[1]}, recorded is {row['output']}"
    for note in evidence.notes:
        at = note["job"], f"{note.get('step')}#0"
        if note["kind"] == "ran" and note["fence"] > seen_under.get(at, note["fence"]):
            yield f"job {at[0]}: step {at[1]} ran again under fence {note['fence']}, it was recorded by {seen_under[at]}"


def a_child_is_sent_once(evidence: Evidence) -> Iterator[str]:
    steps = {(row["job_id"], row["step"]): _decoded(row["output"]) for row in evidence.steps}
    children = by_job((row for row in evidence.history if row["agent"] == "child"), "parent")
    senders = {row["id"] for row in evidence.history if row["agent"] in parents}
    for sender in sorted(senders):
        if len(children[sender]) != 1:
            yield f"job {sender} sent {len(children[sender])} children: {[row['id'] for row in children[sender]]}"
        for row in children[sender]:
            carried = json.loads(row["payload"])
            if carried != {"parent": sender, "token": steps.get((sender, first_step))}:
                yield f"job {row['id']}, child of {sender}, carries {carried}, not what its sender had recorded"
    for sender in children.keys() - senders:
        yield f"children without a sender: {[row['id'] for row in children[sender]]} say they are of job {sender}"


def keys_keep_their_order(evidence: Evidence) -> Iterator[str]:
    """By the tables: the successful attempt of a job begins after the end of the one sent before it. By the ledger: no
    attempt begins, also none that fails, before the one sent before has written its end, nor after a later one began."""
    ends = {row["id"]: row for row in evidence.history}
    mailboxes: dict[str, list[int]] = defaultdict(list)
    for job in evidence.sent:
        if job.key is not None and job.id in ends:
            mailboxes[job.key].append(job.id)
    starts: dict[int, list[int]] = defaultdict(list)
    last_end: dict[int, int] = {}
    for line, note in enumerate(evidence.notes):
        if note["kind"] == "start":
            starts[note["job"]].append(line)
        elif note["kind"] == "end":
            last_end[note["job"]] = line
    for key, ids in mailboxes.items():
        for before, after in pairwise(ids):
            if ends[after]["kseq"] <= ends[before]["kseq"]:
                yield f"key {key}: job {after} was sent after {before}, but stands before it"
            if ends[after]["claimed_at"] < ends[before]["finished_at"]:
                yield f"key {key}: job {after} was claimed before job {before} had ended"
            first = min(starts[after], default=None)
            if first is not None and first < last_end.get(before, first + 1):
                yield f"key {key}: job {after} began before job {before} wrote its end"
            if first is not None and max(starts[before], default=-1) > first:
                yield f"key {key}: job {before} ran again after job {after}, sent after it, had begun"
