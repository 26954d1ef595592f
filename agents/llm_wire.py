"""One call of a model: the stream of its answer read to the end, and what a fault on the way means.

The client libraries do not retry here (`max_retries=0`): the job does. Their errors hold the request with its key, so
none is the cause or the context of an error of ours.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from agentrt import Fail
from agentrt.agents.llm_draft import AnthropicDraft, Completion, Draft, OpenAiDraft
from agentrt.agents.llm_endpoints import (
    ModelCall,
    anthropic_client,
    anthropic_events,
    openai_client,
    openai_events,
)
from agentrt.agents.llm_outcome import ModelUnavailable, Refusal, outcome

if TYPE_CHECKING:
    import anthropic
    import openai

idle_s_default = 60.0


async def call_model(call: ModelCall) -> Completion:
    """Ask once, and read the answer to its end. A step: the answer is recorded before anything else happens.

    The stream may be silent for `AGENTRT_LLM_IDLE_S` seconds (default 60); what a server sends to keep the connection
    alive is no silence.

    Raises:
        RetryAfter, Fail, ModelUnavailable: as `llm_outcome.outcome` says of what the endpoint told.
        ModelUnavailable: no connection, silence over the limit, or a stream that ended before the answer did. When the
            request had been sent, it may be billed; the text says so.
        Fail: the client library is missing, or the key or base URL is missing or unusable.
    """
    draft: Draft
    if call["provider"] == "openai":
        draft = OpenAiDraft(call["model"])
        client: openai.AsyncOpenAI | anthropic.AsyncAnthropic = await asyncio.to_thread(openai_client, idle_s())
    else:
        draft = AnthropicDraft(call["model"])
        client = await asyncio.to_thread(anthropic_client, idle_s())
    async with client:
        problem = await _ask(client, call, draft)
    if problem is not None:
        raise problem
    return draft.completion()


async def _ask(client: Any, call: ModelCall, draft: Draft) -> Exception | None:
    """Feed the answer into `draft`; returns what went wrong, to be raised away from the library's frames.

    `client` is of either library: their errors have the same names and, as far as used here, the same fields.
    """
    import httpx2

    if call["provider"] == "openai":
        import openai as sdk

        events = openai_events(client, call)
    else:
        import anthropic as sdk  # type: ignore[no-redef]

        events = anthropic_events(client, call)
    where = f"{call['model']} at {client.base_url.host}"
    try:
        async with aclosing(events):
            async for event in events:
                if (told := draft.error(event)) is not None:
                    return outcome(Refusal(200, {}, told), where)
                draft.feed(event)
    except sdk.APIStatusError as error:
        return outcome(Refusal(error.status_code, error.response.headers, error.body), where)
    except sdk.APIConnectionError as error:
        return _broken(error.__cause__ or error, where, draft)
    except sdk.APIError as error:  # OpenAI's library: an error inside the stream, or an answer that it cannot read
        return outcome(Refusal(200, {}, error.body), where)
    except (httpx2.HTTPError, httpx2.StreamError, ValueError) as error:  # ValueError: an event that is no JSON
        return _broken(error, where, draft)
    if draft.finish is None:
        return ModelUnavailable(f"{where} ended the answer unfinished, after {draft.chars} characters (may be billed).")
    return None


def _broken(error: BaseException, where: str, draft: Draft) -> ModelUnavailable:
    """What a fault of the connection means. Only its kind is told: its text may hold what was sent."""
    import httpx2

    kind = type(error).__name__
    if isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)):
        return ModelUnavailable(f"No connection to {where} ({kind}). Nothing was sent.")
    what = f"was silent for {idle_s():g} s" if isinstance(error, httpx2.ReadTimeout) else f"broke off ({kind})"
    return ModelUnavailable(f"{where} {what}, after {draft.chars} characters of the answer (may be billed).")


def idle_s() -> float:
    """How long a stream may be silent: `AGENTRT_LLM_IDLE_S`. Raises `Fail` when that is no number above 0."""
    text = os.environ.get("AGENTRT_LLM_IDLE_S", "").strip()
    try:
        seconds = float(text or idle_s_default)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise Fail(f"AGENTRT_LLM_IDLE_S is {text!r}; it must be a number of seconds above 0.")
    return seconds
