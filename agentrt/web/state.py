"""`/state.json`: what the page draws, in the words of the runtime. Times are lengths in seconds."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import UTC, datetime

from agentrt.config import redact
from agentrt.engine.supervisor import Supervisor
from agentrt.errors import StoreError
from agentrt.model import JobRow, State
from agentrt.web.looks import Counts, Looks, seconds_between

error_chars_max = 300
gone_after_s = 30.0


class View:
    """The state as one supervisor sees it: its own, and the database's as far as that answers."""

    def __init__(self, supervisor: Supervisor, looks: Looks) -> None:
        self._supervisor = supervisor
        self._looks = looks
        self._host = socket.gethostname()

    async def now(self) -> dict[str, object]:
        """`problem` says why the tables are missing, when they are."""
        state: dict[str, object] = {
            "process": {
                "id": str(self._supervisor.id),
                "host": self._host,
                "pid": os.getpid(),
                "running": self._supervisor.running_jobs,
                "slots": self._supervisor.slots,
                "health": self._supervisor.health(),
            },
            "problem": None,
        }
        try:
            supervisors = await self._looks.supervisors()
            counts = await self._looks.counts()
            jobs = await self._looks.jobs()
            decisions = await self._looks.decisions()
        except StoreError as error:
            return {**state, "problem": redact(str(error))}
        now = datetime.now(UTC)
        return {
            **state,
            "supervisors": [_supervisor_entry(row, now) for row in supervisors],
            "agents": _agent_entries(counts, supervisors),
            "jobs": [_job_entry(row, now) for row in jobs],
            "decisions": [_decision_entry(row, now) for row in decisions],
        }


def _supervisor_entry(row: JobRow, now: datetime) -> dict[str, object]:
    return {
        "id": str(row["id"]),
        "host": row["host"],
        "pid": row["pid"],
        "agents": sorted(row["agents"]),
        "slots": row["slots"],
        "state": "gone" if row["silent_s"] > gone_after_s else row["state"],
        "silent_s": row["silent_s"],
        "up_s": seconds_between(row["started_at"], now),
    }


def _agent_entries(counts: Counts, supervisors: Sequence[JobRow]) -> list[dict[str, object]]:
    """One an agent that has jobs or that a live supervisor runs."""
    served = {agent for row in supervisors if row["silent_s"] <= gone_after_s for agent in row["agents"]}
    return [
        {"agent": agent, "served": agent in served, "counts": counts.get(agent, {})}
        for agent in sorted({*counts, *served})
    ]


def _job_entry(row: JobRow, now: datetime) -> dict[str, object]:
    error = redact(row["last_error"] or "")
    return {
        "id": row["id"],
        "agent": row["job_type"],
        "key": row["key"],
        "state": row["state"],
        "attempt": row["attempt_count"],
        "max_attempts": row["max_attempts"],
        "age_s": seconds_between(row["created_at"], now),
        "reason": row["reason"],
        "due_s": seconds_between(now, row["run_after"]) if row["state"] == State.scheduled else None,
        "ran_s": seconds_between(row["claimed_at"], row["finished_at"] or now) if _has_run(row) else None,
        "error": error if len(error) <= error_chars_max else f"{error[:error_chars_max]}…",
    }


def _decision_entry(row: JobRow, now: datetime) -> dict[str, object]:
    """Without its text, its options and names: those may hold what a payload does."""
    return {
        "id": row["id"],
        "job_id": row["job_id"],
        "agent": row["agent"] or "",
        "age_s": seconds_between(row["created_at"], now),
        "left_s": seconds_between(now, row["expires"]),
        "who": None if row["who"] is None else len(row["who"]),
    }


def _has_run(row: JobRow) -> bool:
    return row["state"] == State.running or row["finished_at"] is not None
