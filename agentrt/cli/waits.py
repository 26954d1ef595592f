"""What a job's steps wait for, in words: from the rows of `waits_of` to a clause, without a database."""

from __future__ import annotations

from collections.abc import Sequence

from agentrt.cli import render
from agentrt.model import JobRow

named_max = 3  # more waits than this are counted
_question_chars_max = 80
_failure_chars_max = 120
step_styles = {"done": "green", "failed": "red", "waits": "cyan", "again": "yellow"}


def waits_line(waits: Sequence[JobRow]) -> str:
    """What the first of them wait for, and how many more there are; empty for none."""
    if not waits:
        return ""
    more = waits[0]["waits"] - len(waits[:named_max])
    line = ", ".join(wait_text(wait) for wait in waits[:named_max])
    return f"{line}, and {more:,} more" if more else line


def wait_text(wait: JobRow) -> str:
    """What one step waits for."""
    due_s = wait["due_in_s"]
    if wait["kind"] == "ask":
        return f"waits for a reply of {_child(wait)}{_until(due_s)}"
    if wait["kind"] == "decide":
        question = _shortened(wait["question"] or "", _question_chars_max)
        return f"waits for a decision: question {wait['decision'] or '?'}, {question!r}{_until(due_s)}"
    if wait["kind"] == "sleep":
        return f"sleeps, due in {render.duration(due_s)}"
    tries = f"after {wait['tries']} {'try' if wait['tries'] == 1 else 'tries'}" if wait["tries"] else "as it asked"
    return f"step {render.plain(wait['step'])} tries again in {render.duration(due_s)} ({tries}: {failure_text(wait['failure'])})"


def tries_of(step: JobRow) -> int:
    """How often a step was tried. Its row counts those that failed."""
    tries: int = step["tries"] + (step["kind"] == "step" and step["state"] == "done")
    return tries


def failure_text(failure: str | None) -> str | None:
    """Class and text of a recorded failure, or how a job that was asked ended."""
    if failure is None:
        return None
    data = render.json_value(failure)
    if not isinstance(data, dict):
        return render.plain(failure)
    if "kind" in data:
        return _shortened(f"{data['kind']}: {data.get('text')}", _failure_chars_max)
    if "job" in data:
        ended = "was not done in time" if data.get("state") == "timeout" else data.get("state")
        error = "" if data.get("state") == "timeout" else f": {data.get('error')}"
        return _shortened(f"job {data['job']} {ended}{error}", _failure_chars_max)
    return str(data.get("state", failure))


def _child(wait: JobRow) -> str:
    if wait["child_state"] is None:
        return f"job {wait['child']}, which has ended"
    return f"job {wait['child']} ({render.plain(wait['child_agent'])}, {wait['child_state']})"


def _until(due_s: float | None) -> str:
    if due_s is None:
        return ""
    return f", {render.duration(due_s)} left" if due_s > 0 else ", its time is up"


def _shortened(text: str, chars_max: int) -> str:
    text = render.plain(text)
    return text if len(text) <= chars_max else f"{text[:chars_max]}…"
