"""A model endpoint on loopback that says what a test tells it to: OpenAI's chat completions and Anthropic's messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import pytest
from aiohttp import web

Provider = Literal["openai", "anthropic"]
key = "sk-test-4f9c2b7d1e8a"
idle_s = 1.0  # the silence that ends a stream: short to sit through, long for a machine that stands still
both = pytest.mark.parametrize("provider", ["openai", "anthropic"])

Reply = Callable[[web.Request, asyncio.Event], Awaitable[web.StreamResponse]]


@dataclass
class FakeLlm:
    """Gives the replies in their order, the last one for ever; `requests` holds the bodies that were asked."""

    replies: list[Reply] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0
    _closing: asyncio.Event = field(default_factory=asyncio.Event)
    _runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_post("/v1/messages", self._answer)
        app.router.add_get("/v1/schema", self._schema)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        assert self._runner is not None
        await self._runner.cleanup()

    def says(self, *replies: Reply) -> None:
        self.replies = list(replies)

    async def _schema(self, _request: web.Request) -> web.Response:
        return web.json_response({"type": "integer"})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json())
        self.headers.append(dict(request.headers))
        self.asked.set()
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return await reply(request, self._closing)


def status(code: int, body: object = None, headers: Mapping[str, str] | None = None) -> Reply:
    """An answer with a status; `body` is JSON, or a page when it is a text."""

    async def reply(_request: web.Request, _closing: asyncio.Event) -> web.StreamResponse:
        if isinstance(body, str):
            return web.Response(status=code, text=body, content_type="text/html", headers=headers)
        return web.json_response(body, status=code, headers=headers)

    return reply


def error(code: int, headers: Mapping[str, str] | None = None, /, **fields: object) -> Reply:
    return status(code, {"error": {"message": "no", "type": None, "code": None} | fields}, headers)


def stream(*events: Mapping[str, object] | str, then: str = "end") -> Reply:
    """A stream of events (a text is sent as it is), and then its end, a `cut` of the connection, or `silence`."""

    async def reply(request: web.Request, closing: asyncio.Event) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(event.encode() if isinstance(event, str) else _event(event))
        if then == "silence":
            await closing.wait()
        if then != "end" and request.transport is not None:
            request.transport.close()
        return response

    return reply


def drip(event: Mapping[str, object] | str, every_s: float, times: int, *last: Mapping[str, object]) -> Reply:
    """The same event again and again, then the last ones."""

    async def reply(request: web.Request, _closing: asyncio.Event) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(times):
            await response.write(event.encode() if isinstance(event, str) else _event(event))
            await asyncio.sleep(every_s)
        for one in last:
            await response.write(_event(one))
        return response

    return reply


async def silence(_request: web.Request, closing: asyncio.Event) -> web.StreamResponse:
    """Never answers."""
    await closing.wait()
    return web.Response()


def answer(provider: str, *texts: str, finish: str = "stop", then: str = "end") -> Reply:
    """A whole streamed answer as the provider sends it, with its usage."""
    return stream(*(openai_chunks if provider == "openai" else anthropic_events)(*texts, finish=finish), then=then)


def openai_chunks(*texts: str, finish: str | None = "stop") -> list[Mapping[str, object]]:
    base = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "small-1"}
    chunks: list[Mapping[str, object]] = [
        base | {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]} for text in texts
    ]
    if finish is not None:
        chunks.append(base | {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        details = {"prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": {"reasoning_tokens": 2}}
        usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18} | details
        chunks.append(base | {"choices": [], "usage": usage})
    return chunks


def anthropic_events(*texts: str, finish: str | None = "end_turn") -> list[Mapping[str, object]]:
    words = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}
    usage = {"input_tokens": 6, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2, "output_tokens": 1}
    message = {"id": "m1", "type": "message", "role": "assistant", "model": "small-1", "content": [], "usage": usage}
    events: list[Mapping[str, object]] = [{"type": "message_start", "message": message | {"stop_reason": None}}]
    events.append({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
    events += [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}} for text in texts
    ]
    if finish is not None:
        delta = {"stop_reason": words.get(finish, finish), "stop_sequence": None}
        told = {"output_tokens": 7, "output_tokens_details": {"thinking_tokens": 2}}
        events += [{"type": "content_block_stop", "index": 0}, {"type": "message_delta", "delta": delta, "usage": told}]
        events.append({"type": "message_stop"})
    return events


def _event(event: Mapping[str, object]) -> bytes:
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n".encode()
