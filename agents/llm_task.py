"""The agent `llm_task`: asks a model once per job, and hands on an answer that is whole, or says what it is instead."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Annotated, Any

from pydantic import BaseModel, Field, JsonValue

from agentrt import Fail, Retry, agent, step, to
from agentrt.agents.llm_draft import Completion, Usage
from agentrt.agents.llm_endpoints import ChatMessage, ModelCall, Provider
from agentrt.agents.llm_outcome import without_keys
from agentrt.agents.llm_wire import call_model

model_variable = "AGENTRT_LLM_MODEL"
_shown_chars_max = 1_000


class LlmAnswer(BaseModel):
    """What a model answered.

    Attributes:
        text: the answer as it came.
        data: the answer as JSON that fits the schema, when one was asked for.
        finish: why it ended: `stop`, `length`, or the endpoint's own word.
        truncated: it ended at a token limit; the text is not whole.
    """

    text: str
    data: JsonValue = None
    model: str
    finish: str
    truncated: bool
    usage: Usage


@agent(retry=Retry(max_attempts=6, base_s=2, factor=3, cap_s=600), timeout_s=600, concurrency=8)
async def llm_task(
    prompt: str | None = None,
    messages: list[ChatMessage] | None = None,
    model: str | None = None,
    system: str | None = None,
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None,
    max_tokens: Annotated[int, Field(ge=1)] | None = None,
    json_schema: dict[str, Any] | None = None,
    provider: Provider | None = None,
    notify: str | None = None,
) -> LlmAnswer:
    """Ask a model, and return its answer; with `notify`, send the text on as a job of that agent.

    The answer is recorded as a step, so what follows never asks, or pays, twice. One attempt makes one request; a rate
    limit with a wait reschedules the job, which costs no attempt and holds no slot.

    Args:
        prompt: the user's words; they come after `messages`.
        messages: the conversation so far.
        model: its name; `AGENTRT_LLM_MODEL` when None.
        system: instructions before everything else.
        max_tokens: the most that the answer may take. An answer that is cut there comes back as `truncated`.
        json_schema: ask for JSON of this schema; the answer is parsed and checked.
        provider: `anthropic` for models named claude…, else `openai`: any endpoint that speaks chat completions.
        notify: the name of an agent that takes `content`, such as `discord_notify`.

    Raises:
        Fail: the request cannot succeed as it is, or the answer is none: empty, filtered, refused, cut where JSON was
            asked for, or not the JSON that was asked for. The reason says which, and holds the text.
        RetryAfter: the endpoint asks to wait.
        ModelUnavailable: no whole answer now; the attempt is repeated with backoff.
    """
    if json_schema is not None:
        await asyncio.to_thread(_require_schema, json_schema)
    call = _model_call(prompt, messages, model, system, temperature, max_tokens, json_schema, provider)
    completion = await step(call_model, call, name="model")
    _require_answer(completion, max_tokens, asked_json=json_schema is not None)
    data = await _parsed(completion, json_schema) if json_schema is not None else None
    truncated = completion.finish == "length"
    if notify is not None:
        mark = "\n\n[The answer is cut off: it reached its limit of tokens.]" if truncated else ""
        await to(notify).send(content=completion.text + mark)
    return LlmAnswer(
        text=completion.text,
        data=data,
        model=completion.model,
        finish=completion.finish,
        truncated=truncated,
        usage=completion.usage,
    )


def _model_call(
    prompt: str | None,
    messages: list[ChatMessage] | None,
    model: str | None,
    system: str | None,
    temperature: float | None,
    max_tokens: int | None,
    json_schema: dict[str, Any] | None,
    provider: Provider | None,
) -> ModelCall:
    """What the arguments ask for. Raises `Fail` when that is nothing."""
    named = model or os.environ.get(model_variable, "").strip()
    if not named:
        raise Fail(f"No model is named. Give 'model', or set {model_variable} where the agents run.")
    turns = list(messages or [])
    if prompt is not None:
        turns.append({"role": "user", "content": prompt})
    if not any(turn["content"].strip() for turn in turns):
        raise Fail("There is nothing to ask: 'prompt' and 'messages' are empty. Nothing was sent.")
    if system is not None:
        turns.insert(0, {"role": "system", "content": system})
    return {
        "provider": provider or ("anthropic" if named.startswith("claude") else "openai"),
        "model": named,
        "messages": turns,
        "temperature": temperature,
        "max_tokens": max_tokens,
        "json_schema": json_schema,
    }


def _require_answer(completion: Completion, max_tokens: int | None, *, asked_json: bool) -> None:
    """Raises `Fail` for an answer that nobody should take for one. Asking again would end the same: nothing changes."""
    shown = without_keys((completion.text or completion.refusal)[:_shown_chars_max])
    said = f" Its text: {shown!r}" if shown else ""
    if completion.finish == "content_filter":
        raise Fail(f"{completion.model}: the provider's filter stopped the answer.{said}")
    if completion.finish == "refusal":
        raise Fail(f"{completion.model} declined to answer.{said}")
    if completion.finish == "length" and (asked_json or not completion.text.strip()):
        limit = f"max_tokens={max_tokens}" if max_tokens is not None else "the endpoint's own limit of tokens"
        what = "inside the JSON" if completion.text.strip() else "before any text"
        raise Fail(
            f"{completion.model}: the answer was cut off {what} by {limit}. Send the job with a higher max_tokens.{said}"
        )
    if not completion.text.strip():
        raise Fail(
            f"{completion.model} ended ({completion.finish}) with an empty answer ({completion.usage.output_tokens} tokens)."
        )


async def _parsed(completion: Completion, schema: dict[str, Any]) -> JsonValue:
    """The answer as JSON that fits `schema`; a code fence around it is no fault. Raises `Fail` with the text."""
    text = completion.text.strip()
    if text.startswith("```") and text.endswith("```"):
        text = text.partition("\n")[2].removesuffix("```")
    said = f"Its text: {without_keys(completion.text[:_shown_chars_max])!r}"
    try:
        value: JsonValue = json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        raise Fail(f"{completion.model} answered what is no JSON ({error}). {said}") from None
    if problem := await asyncio.to_thread(_misfit, schema, value):
        raise Fail(f"{completion.model} answered JSON that does not fit the schema, {problem}. {said}")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _require_schema(schema: dict[str, Any]) -> None:
    """Raises `Fail` for what is no JSON schema: before the model is asked, and paid."""
    try:
        import jsonschema  # type: ignore[import-untyped]  # it ships no types
    except ImportError:
        raise Fail(
            "A json_schema needs jsonschema. Install it where llm_task runs: pip install 'agentrt[llm]'."
        ) from None
    try:
        jsonschema.validators.validator_for(schema).check_schema(schema)
    except jsonschema.SchemaError as error:
        raise Fail(f"json_schema is no JSON schema, at {error.json_path}: {error.message[:200]}") from None


def _misfit(schema: dict[str, Any], value: JsonValue) -> str:
    """Where and why `value` does not fit; "" when it does. References are followed inside the schema only."""
    import jsonschema
    import referencing

    validator = jsonschema.validators.validator_for(schema)(schema, registry=referencing.Registry())
    try:
        error = jsonschema.exceptions.best_match(validator.iter_errors(value))
    except referencing.exceptions.Unresolvable as unresolvable:
        return f"which refers to {unresolvable.ref!r}, outside of itself"
    return f"at {error.json_path}: {error.message[:200]}" if error is not None else ""
