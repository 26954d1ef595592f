"""The history checker sees each broken promise: a sound history passes, and every single change of it does not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.crash.checker import Evidence, SentJob, check

moment = datetime(2026, 1, 1, tzinfo=UTC)


def ended(
    job_id: int, agent: str, *, fence: int = 1, result: object = None, at: int = 0, **more: Any
) -> dict[str, Any]:
    """A row of history: claimed at second `at`, ended one second later."""
    row = {
        "id": job_id, "agent": agent, "key": None, "kseq": None, "state": "succeeded", "attempt": fence, "fence": fence,
        "parent": None, "reason": None, "last_error": None, "payload": "{}", "result": json.dumps(result),
        "claimed_at": moment + timedelta(seconds=at), "finished_at": moment + timedelta(seconds=at + 1),
    }  # fmt: skip
    return {**row, **more}


def failed(job_id: int, attempt: int, reason: str) -> dict[str, Any]:
    return {"job_id": job_id, "fence": attempt, "attempt": attempt, "reason": reason}


def note(kind: str, job_id: int, fence: int = 1, **more: object) -> dict[str, Any]:
    return {"kind": kind, "job": job_id, "fence": fence, **more}


def sound() -> Evidence:
    """Jobs 1, 2: a mailbox, the first with a crash. 3: two steps and the child 5, with an error after both. 4: doomed."""
    return Evidence(
        sent=[
            SentJob(1, "keyed", "k", 0), SentJob(2, "keyed", "k", 1), SentJob(3, "stepping", None, 7),
            SentJob(4, "doomed", None, 8),
        ],
        history=[
            ended(1, "keyed", fence=2, result=0, at=0, key="k", kseq=1),
            ended(2, "keyed", result=1, at=1, key="k", kseq=2),
            ended(3, "stepping", fence=2, result=["aa", "bb"]),
            ended(4, "doomed", fence=2, state="failed", reason="error", last_error="ValueError", result=None),
            ended(5, "child", parent=3, payload='{"parent": 3, "token": "aa"}', result="aa"),
        ],
        attempts=[failed(1, 1, "crashed"), failed(3, 1, "error"), failed(4, 1, "crashed"), failed(4, 2, "error")],
        steps=[
            {"job_id": 3, "step": "first#0", "output": '"aa"', "fence": 1},
            {"job_id": 3, "step": "second#0", "output": '"bb"', "fence": 2},
        ],
        notes=[
            note("start", 1), note("end", 1), note("start", 1, 2), note("end", 1, 2), note("start", 2), note("end", 2),
            note("start", 3), note("ran", 3, step="first"), note("saw", 3, step="first", value="aa"),
            note("start", 3, 2), note("saw", 3, 2, step="first", value="aa"), note("ran", 3, 2, step="second"),
            note("saw", 3, 2, step="second", value="bb"), note("end", 3, 2),
            note("start", 4, 2), note("start", 5), note("end", 5),
        ],
    )  # fmt: skip


def test_a_sound_history_passes() -> None:
    assert check(sound()) == []


def change(rows: str, index: int, **values: Any) -> Callable[[Evidence], None]:
    return lambda evidence: getattr(evidence, rows)[index].update(values)


def drop(rows: str, index: int) -> Callable[[Evidence], None]:
    return lambda evidence: getattr(evidence, rows).pop(index)


def again(rows: str, index: int, **values: Any) -> Callable[[Evidence], None]:
    return lambda evidence: getattr(evidence, rows).append({**copy.deepcopy(getattr(evidence, rows)[index]), **values})


def add(rows: str, row: Any) -> Callable[[Evidence], None]:
    return lambda evidence: getattr(evidence, rows).append(row)


def swap_mailbox(evidence: Evidence) -> None:
    evidence.notes[0:6] = evidence.notes[4:6] + evidence.notes[0:4]


def run_again_after_its_successor(evidence: Evidence) -> None:
    evidence.notes.insert(5, evidence.notes.pop(2))


broken: dict[str, tuple[Callable[[Evidence], None], str]] = {
    "a job is lost": (drop("history", 1), "job 2 (keyed) is lost"),
    "a job is unfinished": (add("unfinished", {"id": 9, "agent": "plain", "status": "ready"}), "job 9 (plain) is unfinished"),
    "a job ended twice": (again("history", 1), "job 2 is in history 2 times"),
    "a job nobody sent": (add("history", ended(77, "plain", result=1)), "job 77 is in history, but nobody sent it"),
    "a stray attempt": (add("attempts", failed(77, 1, "error")), "attempt belongs to job 77"),
    "a stray step": (add("steps", {"job_id": 77, "step": "x", "output": "1", "fence": 1}), "step belongs to job 77"),
    "another end": (change("history", 1, state="cancelled"), "ended as cancelled"),
    "a doomed job that succeeds": (change("history", 3, state="succeeded"), "job 4 (doomed) ended as succeeded"),
    "another result": (change("history", 1, result="5"), "job 2 (keyed) has the result 5"),
    "a result that is not of the steps": (change("history", 2, result='["aa", "xx"]'), "job 3 (stepping) has the result"),
    "an attempt too many": (change("history", 1, attempt=2), "job 2 (keyed) says attempt 2"),
    "an attempt that was not counted": (drop("attempts", 0), "job 1 (keyed) says attempt 2"),
    "a fence that does not rise": (change("attempts", 0, fence=2), "its fences do not rise"),
    "a claim that was not counted": (change("history", 1, fence=2), "do not match"),
    "a failure of another kind": (change("attempts", 1, reason="unstorable"), "failed for the reason unstorable"),
    "an attempt that began twice": (add("notes", note("start", 2)), "has 2 notes of its start"),
    "an attempt that ended twice": (add("notes", note("end", 2)), "has 2 notes of its end"),
    "a run after the end": (add("notes", note("start", 5, 2)), "ran on under [2]"),
    "an end that nobody reached": (drop("notes", 13), "never wrote its end"),
    "a success without a run": (lambda evidence: evidence.notes.__delitem__(slice(15, 17)), "job 5 has succeeded, but never ran"),
    "a step recorded twice": (again("steps", 0), "step first#0 is recorded 2 times"),
    "a step that is not recorded": (drop("steps", 1), "without a record of its step second#0"),
    "a step that changed": (change("notes", 10, value="xx"), "saw xx as step first#0"),
    "a step that ran again": (add("notes", note("ran", 3, 2, step="first")), "step first#0 ran again under fence 2"),
    "a child sent twice": (again("history", 4, id=6), "job 3 sent 2 children"),
    "a child not sent": (drop("history", 4), "job 3 sent 0 children"),
    "a child of another step": (change("history", 4, payload='{"parent": 3, "token": "xx"}', result='"xx"'), "carries"),
    "a child without a sender": (change("history", 4, parent=2), "children without a sender"),
    "a key's places swapped": (change("history", 1, kseq=0), "stands before it"),
    "a key's jobs at the same time": (change("history", 1, claimed_at=moment), "was claimed before job 1 had ended"),
    "a key's jobs swapped": (swap_mailbox, "began before job 1 wrote its end"),
    "a key's job again after its successor": (run_again_after_its_successor, "ran again after job 2"),
    "a complaint": (add("complaints", "loop.died"), "a supervisor complained"),
}  # fmt: skip


@pytest.mark.parametrize("what", broken)
def test_the_checker_sees(what: str) -> None:
    breaking, said = broken[what]
    evidence = sound()
    breaking(evidence)
    found = check(evidence)
    assert any(said in violation for violation in found), found
