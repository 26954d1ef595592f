"""The two kinds of endpoints: how each is configured, what is sent to it, and its events as plain JSON.

The client libraries are imported when a job first needs them, in a thread: that takes a second, and would hold up every
other job of the process.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from typing_extensions import TypedDict

from agentrt import Fail

if TYPE_CHECKING:
    import anthropic
    import httpx2
    import openai
    from anthropic.types import RawMessageStreamEvent
    from openai.types.chat import ChatCompletionChunk

connect_s_max = 10.0
_send_s_max = 30.0
_anthropic_max_tokens = 8_192  # its API demands a number
_install = "llm_task needs the client library {0!r}. Install it where it runs: pip install 'agentrt[llm]'."

Event = Mapping[str, object]
Provider = Literal["openai", "anthropic"]


class ChatMessage(TypedDict):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class ModelCall(TypedDict):
    """What is asked of a model, as plain JSON; None leaves it to the endpoint."""

    provider: Provider
    model: str
    messages: list[ChatMessage]
    temperature: float | None
    max_tokens: int | None
    json_schema: dict[str, Any] | None


def openai_client(idle_s: float) -> openai.AsyncOpenAI:
    """A client of the endpoint in `OPENAI_BASE_URL` (default: OpenAI). Raises `Fail` that names what to set or install.

    Without a base URL `OPENAI_API_KEY` must be set; a server of one's own may do without a key.
    """
    try:
        import openai
    except ImportError:
        raise Fail(_install.format("openai")) from None
    base_url = _base_url("OPENAI_BASE_URL")
    key = _key("OPENAI_API_KEY", needed=base_url is None) or "no-key"
    timeout = openai.Timeout(connect=connect_s_max, read=idle_s, write=_send_s_max, pool=connect_s_max)
    return openai.AsyncOpenAI(api_key=key, base_url=base_url, max_retries=0, timeout=timeout)


def anthropic_client(idle_s: float) -> anthropic.AsyncAnthropic:
    """A client of the endpoint in `ANTHROPIC_BASE_URL` (default: Anthropic); the key is `ANTHROPIC_API_KEY`.

    Raises as `openai_client`.
    """
    try:
        import anthropic
    except ImportError:
        raise Fail(_install.format("anthropic")) from None
    base_url = _base_url("ANTHROPIC_BASE_URL")
    key = _key("ANTHROPIC_API_KEY", needed=base_url is None) or "no-key"
    timeout = anthropic.Timeout(connect=connect_s_max, read=idle_s, write=_send_s_max, pool=connect_s_max)
    return anthropic.AsyncAnthropic(api_key=key, base_url=base_url, max_retries=0, timeout=timeout)


async def openai_events(client: openai.AsyncOpenAI, call: ModelCall) -> AsyncGenerator[Event, None]:
    """Ask for a streamed chat completion, with the usage at its end."""
    request: dict[str, Any] = {"model": call["model"], "messages": call["messages"], "temperature": call["temperature"]}
    limit = (
        "max_completion_tokens" if _is_openai(client.base_url.host) else "max_tokens"
    )  # other servers know the old name
    request[limit] = call["max_tokens"]
    if (schema := call["json_schema"]) is not None:
        named = {"name": "answer", "schema": schema, "strict": _may_be_strict(schema)}
        request["response_format"] = {"type": "json_schema", "json_schema": named}
    given = {name: value for name, value in request.items() if value is not None}
    stream: openai.AsyncStream[ChatCompletionChunk] = await client.chat.completions.create(
        stream=True, stream_options={"include_usage": True}, **given
    )
    async with stream:
        if (whole := await _whole_answer(stream.response)) is not None:
            yield whole
            return
        async for chunk in stream:
            yield chunk.to_dict(warnings=False)


async def anthropic_events(client: anthropic.AsyncAnthropic, call: ModelCall) -> AsyncGenerator[Event, None]:
    """Ask for a streamed message; the system texts go into a field of their own."""
    request: dict[str, Any] = {"model": call["model"], "max_tokens": call["max_tokens"] or _anthropic_max_tokens}
    request["messages"] = [message for message in call["messages"] if message["role"] != "system"]
    if system := "\n\n".join(message["content"] for message in call["messages"] if message["role"] == "system"):
        request["system"] = system
    if (schema := call["json_schema"]) is not None:
        request["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    if call["temperature"] is not None:  # The library has no parameter for it; not every model takes it.
        request["extra_body"] = {"temperature": call["temperature"]}
    stream: anthropic.AsyncStream[RawMessageStreamEvent] = await client.messages.create(stream=True, **request)
    async with stream:
        if (whole := await _whole_answer(stream.response)) is not None:
            yield whole
            return
        async for event in stream:
            yield event.to_dict(warnings=False)


async def _whole_answer(response: httpx2.Response) -> Event | None:
    """The answer of a server that does not stream, although it was asked to; None when it does."""
    if "json" not in response.headers.get("content-type", ""):
        return None
    answer = json.loads(await response.aread())
    return answer if isinstance(answer, dict) else {"error": {"message": "the answer is no JSON object"}}


def _base_url(variable: str) -> str | None:
    """Raises `Fail` when the variable holds no address; it may hold a password, so it is not shown nor kept in this frame."""
    if not _variable(variable):
        return None
    if not _is_address(_variable(variable)):
        raise Fail(f"{variable} is no address. Its form is https://host/v1.")
    return _variable(variable)


def _key(variable: str, *, needed: bool) -> str:
    if needed and not _variable(variable):
        raise Fail(f"There is no key. Set {variable}, or the base URL of a server of your own, where the agents run.")
    if not (_variable(variable).isascii() and _variable(variable).isprintable()):
        raise Fail(f"{variable} holds characters that no key has. Set it to the key alone.")
    return _variable(variable)


def _variable(name: str) -> str:
    return os.environ.get(name, "").strip()


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def _is_openai(host: str) -> bool:
    return host == "api.openai.com" or host.endswith((".api.openai.com", ".openai.azure.com"))


def _may_be_strict(schema: object) -> bool:
    """Whether OpenAI takes a schema as strict: each object closed, and all its properties required."""
    if isinstance(schema, list):
        return all(map(_may_be_strict, schema))
    if not isinstance(schema, dict):
        return True
    properties = schema.get("properties")
    if isinstance(properties, dict):
        if schema.get("additionalProperties") is not False or set(properties) != set(schema.get("required", ())):
            return False
        return all(map(_may_be_strict, properties.values())) and _may_be_strict(schema.get("$defs", {}))
    if schema.get("type") == "object":
        return False
    return all(map(_may_be_strict, schema.values()))
