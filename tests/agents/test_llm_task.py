"""The agent that asks a model, against an endpoint on loopback: what is asked, and which answers count."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

from agentrt import Fail
from agentrt.agents import llm_task
from tests.agents.fake_llm import (
    FakeLlm,
    Provider,
    answer,
    both,
    openai_chunks,
    status,
    stream,
)
from tests.agents.job import Job

schema = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "legs": {"type": "integer"}},
    "required": ["name", "legs"],
    "additionalProperties": False,
}


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
