"""The agent that asks a model, against an endpoint that fails: how each trouble ends the attempt, and keeps secrets."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from agentrt import Fail, RetryAfter
from agentrt.agents import llm_task
from agentrt.agents.llm_outcome import ModelUnavailable
from tests.agents.fake_llm import (
    FakeLlm,
    Provider,
    Reply,
    answer,
    anthropic_events,
    both,
    drip,
    error,
    idle_s,
    key,
    openai_chunks,
    silence,
    status,
    stream,
)
from tests.agents.job import Job, everything

# ------------------------------------------------------------------ errors


@both
async def test_a_used_up_quota_fails_at_once_and_a_plain_429_is_retried(llm: FakeLlm, provider: Provider) -> None:
    kind: dict[str, object] = {"code": "insufficient_quota"} if provider == "openai" else {"type": "billing_error"}
    llm.says(error(429, None, **kind))
    with pytest.raises(Fail, match="Top it up"):
        await Job(lambda: llm_task("Hi", provider=provider)).finish()
    assert len(llm.requests) == 1

    llm.says(error(429), error(429), answer(provider, "yes"))
    job = Job(lambda: llm_task("Hi", provider=provider))
    assert (await job.finish()).text == "yes"
    assert [type(failure) for failure in job.failures] == [ModelUnavailable] * 2


@both
@pytest.mark.parametrize("code", [400, 401, 403, 404, 422])
async def test_a_request_that_can_never_succeed_is_made_once(llm: FakeLlm, provider: Provider, code: int) -> None:
    llm.says(error(code, code="context_length_exceeded" if code == 400 else None))
    with pytest.raises(Fail, match="too long" if code == 400 else f"{code}"):
        await Job(lambda: llm_task("Hi", provider=provider)).finish()
    assert len(llm.requests) == 1


@both
async def test_one_attempt_makes_one_request(llm: FakeLlm, provider: Provider) -> None:
    llm.says(error(500, message="This model's maximum context length is 8 tokens"))
    job = Job(lambda: llm_task("Hi", provider=provider))
    with pytest.raises(ModelUnavailable, match="500"):
        await job.finish(attempts_max=3)
    assert len(llm.requests) == len(job.failures) == 3


@both
@pytest.mark.parametrize("code", [429, 503])
@pytest.mark.parametrize(("told", "wait_s"), [("2", 2), ("1.5", 1.5), ("date", 24), ("999999", 7 * 86_400)])
async def test_a_told_wait_reschedules_the_job(
    llm: FakeLlm, provider: Provider, code: int, told: str, wait_s: float
) -> None:
    header = format_datetime(datetime.now(UTC) + timedelta(seconds=32), usegmt=True) if told == "date" else told
    llm.says(error(code, {"Retry-After": header}))
    with pytest.raises(RetryAfter) as caught:
        await llm_task("Hi", provider=provider)
    assert wait_s <= caught.value.seconds <= wait_s + 12


@both
@pytest.mark.parametrize("told", ["past", "-1", "soon", ""])
async def test_a_wait_that_is_none_leaves_it_to_the_backoff(llm: FakeLlm, provider: Provider, told: str) -> None:
    header = format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True) if told == "past" else told
    llm.says(error(429, {"Retry-After": header}))
    with pytest.raises(ModelUnavailable):
        await llm_task("Hi", provider=provider)


@both
@pytest.mark.parametrize(("kind", "ends"), [("overloaded_error", ModelUnavailable), ("authentication_error", Fail)])
async def test_an_error_inside_the_stream_is_taken_by_its_code(
    llm: FakeLlm, provider: Provider, kind: str, ends: type[Exception]
) -> None:
    begin = openai_chunks("Ot", finish=None) if provider == "openai" else anthropic_events("Ot", finish=None)
    told: dict[str, object] = {"error": {"type": kind, "message": "no"}}
    llm.says(stream(*begin, told | ({"type": "error"} if provider == "anthropic" else {})))
    with pytest.raises(ends, match=kind):
        await llm_task("Hi", provider=provider)


async def test_an_error_object_without_a_wrapping_is_seen(llm: FakeLlm) -> None:
    llm.says(stream({"object": "error", "message": "prompt is too long", "type": "BadRequestError", "code": 400}))
    with pytest.raises(Fail, match="too long"):
        await llm_task("Hi")


# ------------------------------------------------------------------ streams that stop


@both
async def test_a_stream_that_falls_silent_fails_the_attempt_within_the_idle_limit(
    llm: FakeLlm, provider: Provider
) -> None:
    begin = openai_chunks if provider == "openai" else anthropic_events
    llm.says(stream(*begin("a", "b", "c", finish=None), then="silence"), answer(provider, "yes"))
    job = Job(lambda: llm_task("Hi", provider=provider))
    async with asyncio.timeout(20):
        assert (await job.finish()).text == "yes"
    assert [str(failure) for failure in job.failures] == [
        f"small-1 at 127.0.0.1 was silent for {idle_s:g} s, after 3 characters of the answer (may be billed)."
    ]


@both
async def test_an_endpoint_that_never_answers_fails_the_attempt(llm: FakeLlm, provider: Provider) -> None:
    llm.says(silence)
    with pytest.raises(ModelUnavailable, match=rf"silent for {idle_s:g} s, after 0 characters"):
        await llm_task("Hi", provider=provider)


@both
@pytest.mark.parametrize("then", ["cut", "end"])
async def test_a_stream_that_ends_too_early_fails_the_attempt(llm: FakeLlm, provider: Provider, then: str) -> None:
    begin = openai_chunks if provider == "openai" else anthropic_events
    llm.says(stream(*begin("abc", finish=None), then=then))
    with pytest.raises(ModelUnavailable, match="after 3 characters"):
        await llm_task("Hi", provider=provider)


@both
async def test_an_event_that_is_no_json_fails_the_attempt(llm: FakeLlm, provider: Provider) -> None:
    llm.says(stream("event: message_start\ndata: {oops\n\n"))
    with pytest.raises(ModelUnavailable, match="broke off"):
        await llm_task("Hi", provider=provider)


@both
async def test_signs_of_life_are_no_silence(llm: FakeLlm, provider: Provider) -> None:
    last = openai_chunks("yes") if provider == "openai" else anthropic_events("yes")
    llm.says(drip(": still thinking\n\n", idle_s / 10, 15, *last))
    assert (await llm_task("Hi", provider=provider)).text == "yes"


async def test_without_a_server_nothing_is_said_to_be_billed(llm: FakeLlm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    with pytest.raises(ModelUnavailable, match=r"No connection to small-1 at 127.0.0.1 .*Nothing was sent"):
        await llm_task("Hi")


@both
async def test_a_cancel_ends_a_silent_stream_at_once(
    llm: FakeLlm, monkeypatch: pytest.MonkeyPatch, provider: Provider
) -> None:
    monkeypatch.setenv("AGENTRT_LLM_IDLE_S", "60")
    llm.says(silence)
    async with asyncio.timeout(20):
        task = asyncio.ensure_future(llm_task("Hi", provider=provider))
        await llm.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


# ------------------------------------------------------------------ secrets


@both
@pytest.mark.parametrize("trouble", ["401", "500", "page", "cut", "silence", "down", "newline"])
async def test_the_key_is_in_no_error_log_or_traceback(
    llm: FakeLlm,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    provider: Provider,
    trouble: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    echo = f"Incorrect API key provided: {key}. Authorization: Bearer {key}"
    replies: dict[str, Reply] = {
        "401": error(401, message=echo),
        "500": error(500, message=echo),
        "page": status(502, f"<p>{echo}</p>"),
        "cut": stream(then="cut"),
        "silence": silence,
    }
    llm.says(replies.get(trouble, silence))
    if trouble == "down":
        monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:1")
    if trouble == "newline":
        for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
            monkeypatch.setenv(variable, f"{key[:9]}\n{key[9:]}")
    with pytest.raises((Fail, ModelUnavailable)) as caught:
        await llm_task("Hi", provider=provider)

    seen = str(caught.value) + everything(caught.value, but_of=__file__) + caplog.text
    assert key not in seen
    assert key[9:] not in seen
