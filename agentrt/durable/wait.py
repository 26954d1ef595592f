"""Waits that survive a crash: for a moment, and for the end of another job. A waiting job holds no slot and no connection."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any, cast

from agentrt import codec
from agentrt.context import Attempt, Begun, require_aware, running, through_outages
from agentrt.durable import fault
from agentrt.errors import JobCancelled, JobExpired, JobFailed, JobNotFound, ReplyTimeout
from agentrt.limits import delay_s_max, require_within
from agentrt.model import StepRecord, StepState


async def sleep(seconds: float) -> None:
    """Wait; the moment of waking is stored, so a restart neither shortens nor lengthens it. Outside of a job: `asyncio.sleep`.

    Raises `UsageError` for a number that is negative or beyond ten years.
    """
    require_within("seconds", seconds, 0, delay_s_max)
    attempt = running.get()
    if attempt is None:
        await asyncio.sleep(seconds)
    else:
        await _sleep(attempt, "sleep", seconds)


async def wait_until(moment: datetime) -> None:
    """Wait until a moment (with a time zone); at once when it has passed. The first run's moment counts for every rerun.

    Raises `UsageError` for a time without zone, or one more than ten years ahead.
    """
    require_aware("moment", moment)
    seconds = max(0.0, (moment - datetime.now(UTC)).total_seconds())
    require_within("seconds until the moment", seconds, 0, delay_s_max)
    attempt = running.get()
    if attempt is None:
        await asyncio.sleep(seconds)
    else:
        await _sleep(attempt, "wait_until", seconds)


async def _sleep(attempt: Attempt, name: str, seconds: float) -> None:
    begun = attempt.begin("sleep", name)
    state = begun.known or await attempt.record(StepRecord(begun.mark, "sleep", done=False, wait_s=seconds))
    if state.due is not None and state.due > time.monotonic():
        await attempt.until(begun.mark.id, state.due)


async def result_as_step(attempt: Attempt, job_id: int, schema: codec.Adapter, timeout_s: float | None) -> Any:
    """`Job.result()` inside an agent: the wait and its outcome are a step. Raises what `Job.result` raises."""
    begun = attempt.begin("ask", "result", (job_id,))
    state = begun.known
    if state is None:
        state = await through_outages(lambda: attempt.store.await_job(attempt.owner, begun.mark, job_id, timeout_s))
        if state is None:
            raise await missing(attempt.store, job_id)
    return await reply(attempt, begun, state, schema, timeout_s)


async def missing(store: Any, job_id: int) -> JobNotFound:
    """Why there is no such job: it never was, or it was pruned."""
    return JobExpired(job_id) if await store.was_issued(job_id) else JobNotFound(job_id)


async def reply(
    attempt: Attempt, begun: Begun, state: StepState, schema: codec.Adapter, timeout_s: float | None
) -> Any:
    """Wait for the end of the job that a step asked; decode its result, or raise how it ended.

    The reply and the timeout race to one recorded outcome: whichever is stored first is what every rerun sees.
    """
    step_id = begun.mark.id
    child = cast("int", state.child)
    if not state.done:
        answer = await attempt.until(step_id, state.due)
        if answer is None:
            late = StepRecord(begun.mark, "ask", failure=_timeout(child, timeout_s))
            answer = await attempt.record(late)
        state = answer
    if state.failure is None:
        return codec.decode(state.output or "null", schema, at=f"result of job {child}")
    error = _failure(state.failure, child)
    fault.mark(error, step_id, final=True)
    raise error


def _timeout(child: int, timeout_s: float | None) -> str:
    return codec.encode(
        {"job": child, "agent": "", "state": "timeout", "reason": None, "error": f"{timeout_s or 0:g}"}
    ).decode()


def _failure(text: str, child: int) -> Exception:
    data = cast("dict[str, Any]", codec.parse(text))
    if data["state"] == "timeout":
        return ReplyTimeout(child, float(data["error"]))
    if data["state"] == "expired":
        return JobExpired(child)
    if data["state"] == "cancelled":
        return JobCancelled(child, data["agent"], data["error"])
    return JobFailed(child, data["agent"], data["reason"] or "error", data["error"])
