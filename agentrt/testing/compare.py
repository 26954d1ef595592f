"""What two runs of an agent must have in common, as facts that can be told apart one by one."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

from agentrt import codec
from agentrt.model import JobRow
from agentrt.store import Store

Facts = dict[str, object]
_shown_chars_max = 200
_jobs_max = 10_000


async def look(store: Store, job_id: int, *, recorded: bool = False) -> Facts:
    """What is true of a job: how it ended, its steps, the other jobs of its database. `recorded`: its finished steps alone."""
    facts: Facts = {}
    for step in await store.steps_of(job_id):
        name = f"step {step['step']}"
        if recorded and (not step["done"] or step["failure"] is not None):
            continue
        facts[f"{name}: kind"] = step["kind"]
        facts[f"{name}: done"] = step["done"]
        facts[f"{name}: output"] = _output(step)
        facts[f"{name}: failure"] = _failure(step["failure"])
    if recorded:
        return facts
    row = await store.job(job_id)
    assert row is not None
    facts["state"] = row["state"] if row["reason"] is None else f"{row['state']} ({row['reason']})"
    facts["result"] = row["result"]
    facts["error"] = row["last_error"] if row["reason"] is not None else None
    rows = await store.jobs(state=None, agent=None, key=None, limit=_jobs_max)
    full = [await store.job(one["id"]) for one in rows if one["id"] != job_id]
    sent = Counter((one["job_type"], one["key"], one["payload"]) for one in full if one is not None)
    for (agent, key, payload), count in sent.items():
        where = agent if key is None else f"{agent}[{key!r}]"
        facts[f"messages to {where} with {payload}"] = count
    return facts


def _output(step: JobRow) -> object:
    """Without what differs from run to run by nature: the ids of jobs, the moment of an answer."""
    if step["kind"] == "send" or step["output"] is None:
        return None
    if step["kind"] != "decide":
        return step["output"]
    answer = cast("dict[str, Any]", codec.parse(step["output"]))
    return f"{answer['option']} by {answer['by']}"


def _failure(text: str | None) -> object:
    if text is None:
        return None
    failure = cast("dict[str, Any]", codec.parse(text))
    return ": ".join(
        str(failure[name]) for name in ("kind", "text", "agent", "state", "reason", "error") if failure.get(name)
    )


def varying(first: Facts, second: Facts) -> set[str]:
    """The facts that differ between two runs that nothing disturbed."""
    return {name for name in first.keys() | second.keys() if first.get(name) != second.get(name)}


def differences(expected: Facts, found: Facts, free: set[str]) -> list[str]:
    """Lines about what is not as expected. Facts in `free` may be anything; facts that were not expected count, too."""
    lines = []
    for name in [*expected, *(name for name in found if name not in expected)]:
        if name in free or expected.get(name) == found.get(name):
            continue
        lines.append(f"{name} is {_shown(found, name)}, without the crash {_shown(expected, name)}")
    return lines


def changes(kept: Facts, found: Facts) -> list[str]:
    """Lines about what was recorded for good and is different now."""
    return [
        f"{name} is {_shown(found, name)}, before the crash {_shown(kept, name)}"
        for name in kept
        if found.get(name) != kept[name]
    ]


def _shown(facts: Facts, name: str) -> str:
    text = "missing" if name not in facts else str(facts[name])
    return text if len(text) <= _shown_chars_max else f"{text[:_shown_chars_max]}…"
