"""The agent that asks a model, against an endpoint on loopback: what is asked, and how each answer ends the attempt."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, Literal

import pytest

from agentrt import Fail, RetryAfter
from agentrt.agents import llm_task
from agentrt.agents.llm_outcome import ModelUnavailable
from tests.agents.fake_llm import (
    FakeLlm,
    Reply,
    answer,
    anthropic_events,
    drip,
    error,
    openai_chunks,
    silence,
    status,
    stream,
)
from tests.agents.job import Job, everything

Provider = Literal["openai", "anthropic"]
key = "sk-test-4f9c2b7d1e8a"
both = pytest.mark.parametrize("provider", ["openai", "anthropic"])
schema = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "legs": {"type": "integer"}},
    "required": ["name", "legs"],
    "additionalProperties": False,
}


@pytest.fixture
async def llm(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeLlm]:
    async with FakeLlm() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.port}/v1")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{server.port}")
        monkeypatch.setenv("OPENAI_API_KEY", key)
        monkeypatch.setenv("ANTHROPIC_API_KEY", key)
        monkeypatch.setenv("AGENTRT_LLM_MODEL", "small-1")
        monkeypatch.setenv("AGENTRT_LLM_IDLE_S", "0.3")
        yield server


# ------------------------------------------------------------------ what is asked and what comes back


@both
async def test_an_answer_comes_whole_with_its_usage(llm: FakeLlm, provider: Provider) -> None:
    llm.says(answer(provider, "Otters ", "hold ", "hands. 🦦"))
    got = await llm_task("Why?", provider=provider)

    assert (got.text, got.finish, got.truncated, got.data) == ("Otters hold hands. 🦦", "stop", False, None)
    assert got.model == "small-1"
    assert got.usage.model_dump() == {
        "input_tokens": 11,
        "output_tokens": 7,
        "cached_input_tokens": 3,
        "reasoning_tokens": 2,
    }


async def test_openai_gets_the_conversation_and_is_asked_for_the_usage(llm: FakeLlm) -> None:
    llm.says(answer("openai", "yes"))
    await llm_task(
        "And now?", messages=[{"role": "user", "content": "Hi"}], system="Be brief.", temperature=0.5, max_tokens=9
    )

    (asked,) = llm.requests
    assert asked == {
        "model": "small-1",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {"role": "user", "content": "And now?"},
        ],
        "temperature": 0.5,
        "max_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_anthropic_gets_the_system_text_apart_and_is_chosen_by_the_model_s_name(llm: FakeLlm) -> None:
    llm.says(answer("anthropic", "yes"))
    await llm_task("Hi", model="claude-small", system="Be brief.", temperature=0.5)

    (asked,) = llm.requests
    assert asked.pop("max_tokens") > 1_000
    messages = [{"role": "user", "content": "Hi"}]
    assert asked == {
        "model": "claude-small",
        "system": "Be brief.",
        "messages": messages,
        "temperature": 0.5,
        "stream": True,
    }


@both
async def test_an_answer_that_does_not_stream_is_read_too(llm: FakeLlm, provider: Provider) -> None:
    whole: dict[str, object] = {"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}], "model": "old-1"}
    if provider == "anthropic":
        content = [{"type": "text", "text": "yes"}]
        whole = {"type": "message", "content": content, "stop_reason": "end_turn", "model": "old-1", "usage": {}}
    llm.says(status(200, whole))
    got = await llm_task("Hi", provider=provider)
    assert (got.text, got.finish, got.model) == ("yes", "stop", "old-1")


@pytest.mark.parametrize("text", [None, "", " \n"])
async def test_nothing_to_ask_fails_before_the_request(llm: FakeLlm, text: str | None) -> None:
    with pytest.raises(Fail, match="nothing to ask"):
        await llm_task(text)
    assert llm.requests == []


async def test_a_missing_setting_is_named(llm: FakeLlm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "user:secret@nowhere/v1")
    with pytest.raises(Fail, match="OPENAI_BASE_URL is no address") as caught:
        await llm_task("Hi")
    assert "secret" not in str(caught.value)
    monkeypatch.setenv("OPENAI_BASE_URL", "")
    monkeypatch.setenv("OPENAI_API_KEY", "")
    with pytest.raises(Fail, match="Set OPENAI_API_KEY"):
        await llm_task("Hi")
    monkeypatch.setenv("OPENAI_API_KEY", "ключ")
    with pytest.raises(Fail, match="OPENAI_API_KEY holds characters that no key has"):
        await llm_task("Hi")
    monkeypatch.setenv("AGENTRT_LLM_MODEL", "")
    with pytest.raises(Fail, match="set AGENTRT_LLM_MODEL"):
        await llm_task("Hi")
    assert llm.requests == []


@both
async def test_a_missing_library_is_named(llm: FakeLlm, monkeypatch: pytest.MonkeyPatch, provider: Provider) -> None:
    monkeypatch.setitem(sys.modules, provider, None)
    with pytest.raises(Fail, match=rf"'{provider}'.*pip install 'agentrt\[llm\]'"):
        await llm_task("Hi", provider=provider)


async def test_a_server_of_one_s_own_needs_no_key(llm: FakeLlm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    llm.says(answer("openai", "yes"))
    assert (await llm_task("Hi")).text == "yes"


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
@pytest.mark.parametrize(("told", "wait_s"), [("2", 2), ("1.5", 1.5), ("date", 2), ("999999", 7 * 86_400)])
async def test_a_told_wait_reschedules_the_job(
    llm: FakeLlm, provider: Provider, code: int, told: str, wait_s: float
) -> None:
    header = format_datetime(datetime.now(UTC) + timedelta(seconds=3), usegmt=True) if told == "date" else told
    llm.says(error(code, {"Retry-After": header}))
    with pytest.raises(RetryAfter) as caught:
        await llm_task("Hi", provider=provider)
    assert wait_s <= caught.value.seconds <= wait_s + 8


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


# ------------------------------------------------------------------ answers that are none


@both
async def test_a_cut_answer_is_marked_and_a_cut_before_any_text_fails(llm: FakeLlm, provider: Provider) -> None:
    llm.says(answer(provider, "Otters hold", finish="length"))
    got = await llm_task("Hi", provider=provider)
    assert (got.text, got.finish, got.truncated) == ("Otters hold", "length", True)

    llm.says(answer(provider, finish="length"))
    job = Job(lambda: llm_task("Hi", provider=provider, max_tokens=5))
    with pytest.raises(Fail, match="before any text by max_tokens=5"):
        await job.finish()
    assert len(llm.requests) == 2


@both
async def test_half_a_json_fails_with_the_limit_and_the_text(llm: FakeLlm, provider: Provider) -> None:
    llm.says(answer(provider, '{"name": "ot', finish="length"))
    with pytest.raises(Fail, match=r'inside the JSON by the endpoint.s own limit.*"name": "ot'):
        await Job(lambda: llm_task("Hi", provider=provider, json_schema=schema)).finish()
    assert len(llm.requests) == 1


@both
async def test_a_filtered_answer_fails_with_its_text_kept(llm: FakeLlm, provider: Provider) -> None:
    llm.says(answer(provider, "Once upon", finish="content_filter"))
    with pytest.raises(Fail, match=r"(filter stopped|declined).*Once upon"):
        await Job(lambda: llm_task("Hi", provider=provider)).finish()
    assert len(llm.requests) == 1


async def test_a_refusal_that_openai_calls_a_stop_fails(llm: FakeLlm) -> None:
    llm.says(stream({"choices": [{"delta": {"refusal": "I can't help"}}]}, *openai_chunks()))
    with pytest.raises(Fail, match=r"declined to answer.*I can't help"):
        await llm_task("Hi")


@both
async def test_an_empty_answer_is_told_apart_from_a_cut_one(llm: FakeLlm, provider: Provider) -> None:
    llm.says(answer(provider, "", " \n"))
    with pytest.raises(Fail, match=r"ended \(stop\) with an empty answer"):
        await llm_task("Hi", provider=provider)


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
        "small-1 at 127.0.0.1 was silent for 0.3 s, after 3 characters of the answer (may be billed)."
    ]


@both
async def test_an_endpoint_that_never_answers_fails_the_attempt(llm: FakeLlm, provider: Provider) -> None:
    llm.says(silence)
    with pytest.raises(ModelUnavailable, match=r"silent for 0.3 s, after 0 characters"):
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
    llm.says(drip(": still thinking\n\n", 0.1, 6, *last))
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


# ------------------------------------------------------------------ structured output


async def test_openai_is_asked_for_the_schema_strictly_only_where_it_may_be(llm: FakeLlm) -> None:
    loose: dict[str, Any] = {"type": "object", "properties": {"a": schema | {"required": ["name"]}}, "required": ["a"]}
    llm.says(answer("openai", '{"name": "otter", "legs": 4}'), answer("openai", '{"a": {"name": "x"}}'))
    got = await llm_task("Hi", json_schema=schema)
    await llm_task("Hi", json_schema=loose)

    assert got.data == {"name": "otter", "legs": 4}
    forms = [asked["response_format"] for asked in llm.requests]
    assert forms[0] == {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    assert forms[1]["json_schema"]["strict"] is False


async def test_anthropic_is_asked_for_the_schema_as_its_output_format(llm: FakeLlm) -> None:
    llm.says(answer("anthropic", '```json\n{"name": "otter", ', '"legs": 4}\n```'))
    got = await llm_task("Hi", json_schema=schema, provider="anthropic")

    assert got.data == {"name": "otter", "legs": 4}
    assert llm.requests[0]["output_config"] == {"format": {"type": "json_schema", "schema": schema}}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("It is an otter.", "answered what is no JSON .*It is an otter"),
        ('{"name": "otter", "legs": NaN}', "NaN is no JSON"),
        ('{"name": "otter", "legs": "four"}', r"does not fit the schema, at \$\.legs: 'four' is not of type 'integer'"),
        ('{"name": "otter"}', r"at \$: 'legs' is a required property"),
    ],
)
async def test_an_answer_that_is_not_the_json_asked_for_fails_with_its_text(
    llm: FakeLlm, text: str, reason: str
) -> None:
    llm.says(answer("openai", text))
    with pytest.raises(Fail, match=reason):
        await Job(lambda: llm_task("Hi", json_schema=schema)).finish()
    assert len(llm.requests) == 1


async def test_a_wrong_schema_fails_before_the_model_is_asked(llm: FakeLlm) -> None:
    with pytest.raises(Fail, match=r"no JSON schema, at \$\.type"):
        await llm_task("Hi", json_schema={"type": "otter"})
    assert llm.requests == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the library's, when it fetches
async def test_a_reference_out_of_the_schema_is_not_followed(llm: FakeLlm) -> None:
    llm.says(answer("openai", '{"a": 1}'))
    with pytest.raises(Fail, match=r"refers to 'http.*, outside of itself"):
        await llm_task("Hi", json_schema={"properties": {"a": {"$ref": f"http://127.0.0.1:{llm.port}/v1/schema"}}})


# ------------------------------------------------------------------ after the answer


async def test_a_paid_answer_is_not_asked_for_again_when_what_follows_fails(
    llm: FakeLlm, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, str]] = []

    class Address:
        def __init__(self, name: str) -> None:
            self.name = name

        async def send(self, content: str) -> None:
            sent.append((self.name, content))
            if len(sent) == 1:
                raise ConnectionError("the database went away")

    monkeypatch.setattr(importlib.import_module("agentrt.agents.llm_task"), "to", Address)
    llm.says(answer("openai", "Otters hold", finish="length"))
    job = Job(lambda: llm_task("Hi", notify="discord_notify"))
    await job.finish()

    assert len(llm.requests) == 1
    assert sent == [("discord_notify", "Otters hold\n\n[The answer is cut off: it reached its limit of tokens.]")] * 2


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
