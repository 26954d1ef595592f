"""Why a job is where it is, in one line: from the rows of the store to a sentence, without a database."""

from __future__ import annotations

from collections.abc import Sequence

from agentrt.cli.render import duration, moment, plain
from agentrt.cli.waits import waits_line
from agentrt.model import JobRow, State

_error_chars_max = 200
_for_good = {
    "fatal": "the agent gave up",
    "invalid": "the message does not fit the agent's schema",
    "unstorable": "its result cannot be stored",
    "budget": "its budget is used up",
    "cycle": "it would have waited for itself",
    "hops": "its conversation went too far",
}


def why_line(standing: JobRow | None, head: JobRow | None, ended: JobRow | None, waits: Sequence[JobRow] = ()) -> str:
    """What a job waits for, or how it ended.

    Args:
        standing: its row of the statement `standing`, when it is unfinished.
        head: the same of the job that holds its key, when it is blocked.
        ended: its row of `all_jobs`, when it is not unfinished.
        waits: its rows of `waits_of`, when it is unfinished.
    """
    if standing is None:
        return _end(ended) if ended is not None else "it is moving right now; ask again"
    state = standing["state"]
    if state == State.running:
        return f"{waits_line(waits)}; {_running(standing)}" if waits else _running(standing)
    if state == State.scheduled:
        return _scheduled(standing)
    if state == State.ready:
        return _ready(standing)
    if state == State.blocked:
        return _blocked(standing, head)
    return f"{waits_line(waits) or _woken(standing)}{_no_worker(standing)}"


def _woken(row: JobRow) -> str:
    """A parked job of which no step waits any more."""
    if row["due_in_s"] <= 0:
        return f"its wait has been over for {duration(-row['due_in_s'])}, a supervisor makes it ready"
    return "it waits for a reply, a moment or a decision and holds no lease"


def _running(row: JobRow) -> str:
    where = f"leased to {_place(row)}, attempt {_attempt(row, row['attempt'])}"
    left_s = row["lease_left_s"]
    if left_s is None or left_s <= 0:
        since = "" if left_s is None else f" {duration(-left_s)} ago"
        then = "takes it back" if row["cancel_reason"] is None else f"cancels it ({plain(row['cancel_reason'])})"
        return f"{where}, but the lease ran out{since}; the next sweep of a running supervisor {then}{_no_worker(row)}"
    beat = "" if row["silent_s"] is None else f", its supervisor's last beat was {duration(row['silent_s'])} ago"
    line = f"{where}, lease ends in {duration(left_s)}{beat}"
    if row["cancel_reason"] is not None:
        return f"cancel asked for ({plain(row['cancel_reason'])}), waiting for its coroutine to stop; {line}"
    return line


def _scheduled(row: JobRow) -> str:
    due_s = row["due_in_s"]
    when = f"due in {duration(due_s)}" if due_s > 0 else f"due since {duration(-due_s)}, a supervisor makes it ready"
    if row["last_error"] is None:
        return f"{when}, as its sender asked{_no_worker(row)}"
    if row["attempt"] == 0:
        return f"{when}, put off by its agent ({_error(row)}){_no_worker(row)}"
    return f"{when} (retry of attempt {_attempt(row, row['attempt'])}: {_error(row)}){_no_worker(row)}"


def _ready(row: JobRow) -> str:
    after = f"; the attempt before: {_error(row)}" if row["last_error"] is not None else ""
    if not row["workers"]:
        return f"{_no_worker(row).removeprefix('; ')}{after}"
    ahead, full = row["ahead"], _full(row)
    if ahead:
        place = f"{'one job is' if ahead == 1 else f'{ahead:,} jobs are'} ahead of it in the queue of its agent"
        return f"{place}{full and f', and {full}'}{after}"
    return f"the next of its agent; {full or 'it waits for a free slot'}{after}"


def _full(row: JobRow) -> str:
    """Why no job of its agent can start at this moment; empty when one can."""
    running, most, workers = row["running"], row["running_max"], row["workers"]
    processes = "the one process that knows" if workers == 1 else f"the {workers:,} processes that know"
    if most is not None and running >= most:
        return f"{running:,} of its agent run, as many as its limit over all processes allows ({most:,})"
    if row["full_workers"] == workers:
        return f"{row['mine']:,} of its agent run in {processes} it, as many as its concurrency allows"
    if row["busy_workers"] == workers:
        return f"all {row['slots']:,} slots of {processes} its agent are in use"
    if row["closed_workers"] == workers:
        return f"each of {processes} its agent runs as many of it as its concurrency allows, or has no free slot"
    return ""


def _blocked(row: JobRow, head: JobRow | None) -> str:
    key = f"key {row['key']!r}"
    if row["head_id"] is None or head is None:
        return f"{key} has just been set free; ask again"
    about = str(head["state"])
    if about == State.running:
        about = f"running on {_place(head)}"
    elif about == State.scheduled:
        about = _scheduled(head | {"workers": 1})  # that no worker knows the agent is said once, at the end
    return f"{key} is held by job {head['id']} ({about}){_no_worker(row)}"


def _end(row: JobRow) -> str:
    state = row["state"]
    if not State(state).final:
        return "it is moving right now; ask again"
    at = moment(row["finished_at"])
    if state == State.succeeded:
        return f"succeeded at {at}, attempt {_attempt(row, row['attempt_count'])}"
    if state == State.cancelled:
        return f"cancelled at {at}: {_error(row).removeprefix('Cancelled: ')}"
    spent, most = row["attempt_count"], row["max_attempts"]
    if row["reason"] == "diverged":  # with both sides and the command that mends it: whole
        return f"failed at {at}, its code no longer does what was recorded: {plain(row['last_error'] or '')}"
    if row["reason"] in _for_good:
        return f"failed at {at} without a retry, {_for_good[row['reason']]}: {_error(row)}"
    if most is not None and spent >= most:
        return f"failed at {at}, attempts used up ({spent} of {most}), the last of {row['reason']}: {_error(row)}"
    return f"failed at {at}, {row['reason']}: {_error(row)}"


def _no_worker(row: JobRow) -> str:
    """The clause that says that nobody can run it; empty when somebody can."""
    if row["workers"]:
        return ""
    return f"; no worker knows agent {row['agent']!r}: start one with 'agentrt run MODULE'"


def _attempt(row: JobRow, attempt: int) -> str:
    return str(attempt) if row["max_attempts"] is None else f"{attempt} of {row['max_attempts']}"


def _place(row: JobRow) -> str:
    return "a supervisor that has signed off" if row["host"] is None else f"{plain(row['host'])}:{row['pid']}"


def _error(row: JobRow) -> str:
    text = plain(row["last_error"] or "no error is recorded")
    return text if len(text) <= _error_chars_max else f"{text[:_error_chars_max]}…"
