"""A Discord for tests and demos: a server on loopback that takes webhook posts and behaves as Discord documents it.

    async with FakeDiscord() as discord:
        monkeypatch.setenv("DISCORD_WEBHOOK_OPS", discord.webhook("ops"))
        discord.fail_next(502)
        …
        assert discord.contents("ops") == ["disk full"]

It keeps the limits that Discord documents and can be told to fail. It needs the extra `discord` (aiohttp).
`python -m agentrt.testing.fake_discord --port 8099` runs it on its own, for a demo.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import secrets
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

from aiohttp import web

from agentrt.testing.discord_rules import answer, banned, limited, read, refusal


@dataclass(frozen=True, slots=True)
class Post:
    """A message that was stored: `body` is the JSON that was sent, `at` is `time.monotonic()`."""

    id: str
    webhook: str
    content: str
    body: Mapping[str, object]
    files: Mapping[str, bytes]
    at: float


@dataclass(slots=True)
class Request:
    """A request that came in. `status` is what was answered; 0: there is no answer, or there never was one."""

    webhook: str | None
    path: str
    headers: Mapping[str, str]
    body: Mapping[str, object]
    at: float
    status: int = 0


@dataclass(slots=True)
class _Webhook:
    name: str
    id: str
    token: str


@dataclass(slots=True)
class _Bucket:
    limit: int
    window_s: float
    used: int = 0
    resets_at: float = 0.0

    def take(self) -> bool:
        """Count a request; False: the bucket was empty."""
        now = time.monotonic()
        if now >= self.resets_at:
            self.used, self.resets_at = 0, now + self.window_s
        if self.used >= self.limit:
            return False
        self.used += 1
        return True

    @property
    def reset_after_s(self) -> float:
        return max(0.001, self.resets_at - time.monotonic())


@dataclass(slots=True)
class _Fault:
    webhook: str | None
    act: Callable[[web.Request, Callable[[], Post]], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class FakeDiscord:
    """The server; use it as `async with FakeDiscord() as discord`. Times are in seconds.

    Args:
        limit: posts that each webhook takes per `window_s`; more are answered 429, with the headers that Discord sends.
        window_s: how long after its first post a webhook's count starts anew.
        global_limit: requests per second over all webhooks; more are answered 429 with `"global": true`.
        port: 0 takes a free one.
        on_post: called with each stored post.
    """

    limit: int = 5
    window_s: float = 2.0
    global_limit: int = 50
    port: int = 0
    on_post: Callable[[Post], None] | None = None
    messages: list[Post] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    _webhooks: dict[str, _Webhook] = field(default_factory=dict)
    _buckets: dict[str, _Bucket] = field(default_factory=dict)
    _faults: list[_Fault] = field(default_factory=list)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _closing: asyncio.Event = field(default_factory=asyncio.Event)
    _runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=30 * 1024 * 1024)
        for path in ("/api/webhooks/{id}/{token}", r"/api/v{version:\d+}/webhooks/{id}/{token}"):
            app.router.add_post(path, self._execute)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        if self._runner is not None:
            await self._runner.cleanup()

    # -------------------------------------------------------------- webhooks, and what they got

    def webhook(self, name: str = "default", token: str | None = None) -> str:
        """The URL of the webhook `name`, which is made on first use; with a token of its own unless one is given."""
        if name not in self._webhooks:
            number = str(10**17 + secrets.randbelow(10**17))
            self._webhooks[name] = _Webhook(name, number, token or secrets.token_urlsafe(51))
        known = self._webhooks[name]
        return f"http://127.0.0.1:{self.port}/api/webhooks/{known.id}/{known.token}"

    def delete(self, name: str) -> None:
        """Delete a webhook: posts to its URL are answered 404 with code 10015 from now on."""
        del self._webhooks[name]

    def contents(self, webhook: str = "default") -> list[str]:
        """The texts that a webhook got, in their order."""
        return [post.content for post in self.messages if post.webhook == webhook]

    def statuses(self, webhook: str | None = None) -> list[int]:
        """What was answered, in the order of the requests; 0 is no answer."""
        return [request.status for request in self.requests if webhook in (None, request.webhook)]

    async def wait_messages(self, count: int, timeout_s: float = 10.0) -> list[Post]:
        """Wait until `count` messages are stored, and return all. Raises `TimeoutError` that says what came."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: len(self.messages) >= count)
        except TimeoutError:
            came = [post.content[:40] for post in self.messages]
            raise TimeoutError(f"{len(came)} of {count} messages within {timeout_s:g} s: {came}") from None
        return self.messages

    # -------------------------------------------------------------- faults on demand, in the order asked for

    def fail_next(
        self,
        status: int,
        *,
        body: Mapping[str, object] | str | None = None,
        headers: Mapping[str, str] | None = None,
        times: int = 1,
        webhook: str | None = None,
    ) -> None:
        """Answer the next `times` requests with `status`, and store nothing. `body`: JSON, or a page when a text."""
        content = body or {"message": f"{status}: on demand", "code": 0}
        self._fault(times, webhook, lambda: answer(status, content, headers))

    def limit_next(
        self, retry_after_s: float, *, header: str, is_global: bool = False, times: int = 1, webhook: str | None = None
    ) -> None:
        """Answer 429 with `retry_after_s` in the body and another value in the header, as Discord rounds it."""
        scope = "global" if is_global else "user"
        self._fault(times, webhook, lambda: limited(retry_after_s, header, scope))

    def ban_next(self, times: int = 1, webhook: str | None = None) -> None:
        """Answer as the edge in front of Discord does when an address is banned: 429, a page, and no `Via`."""
        self._fault(times, webhook, banned)

    def cut_next(self, *, stored: bool, times: int = 1, webhook: str | None = None) -> None:
        """Close the connection without an answer: after the message was stored, or before."""
        self._fault(times, webhook, None, stored=stored)

    def stall_next(self, *, stored: bool = False, times: int = 1, webhook: str | None = None) -> None:
        """Never answer, until the client gives up."""
        self._fault(times, webhook, None, stored=stored, stall=True)

    def _fault(
        self,
        times: int,
        webhook: str | None,
        respond: Callable[[], web.Response] | None,
        *,
        stored: bool = False,
        stall: bool = False,
    ) -> None:
        async def act(request: web.Request, store: Callable[[], Post]) -> web.StreamResponse:
            if respond is not None:
                return respond()
            if stored:
                store()
            if stall:
                await self._closing.wait()
            if request.transport is not None:
                request.transport.close()
            return web.Response(status=500)  # Goes nowhere: the connection is closed.

        self._faults.extend(_Fault(webhook, act) for _ in range(times))

    # -------------------------------------------------------------- one request

    async def _execute(self, request: web.Request) -> web.StreamResponse:
        known = next((w for w in self._webhooks.values() if w.id == request.match_info["id"]), None)
        name = known.name if known else None
        body, files = await read(request)
        seen = Request(name, request.path_qs, dict(request.headers), body, time.monotonic())
        self.requests.append(seen)

        def store() -> Post:
            return self._store(name or "", body, files)

        fault = next((f for f in self._faults if f.webhook in (None, name)), None)
        if fault is not None:
            self._faults.remove(fault)
            response = await fault.act(request, store)
        elif known is None:
            response = answer(404, {"message": "Unknown Webhook", "code": 10015})
        elif request.match_info["token"] != known.token:
            response = answer(401, {"message": "Invalid Webhook Token", "code": 50027})
        else:
            response = self._admit(known, body, files) or _stored(store(), known, request.query.get("wait", ""))
            self._add_bucket_headers(known, response)
        seen.status = response.status if request.transport is not None and not request.transport.is_closing() else 0
        async with self._changed:
            self._changed.notify_all()
        return response

    def _admit(self, known: _Webhook, body: Mapping[str, object], files: Mapping[str, bytes]) -> web.Response | None:
        """The refusal of a request over a limit or with a wrong body; None: it may be stored."""
        whole = self._buckets.setdefault("", _Bucket(self.global_limit, 1.0))
        bucket = self._buckets.setdefault(known.id, _Bucket(self.limit, self.window_s))
        if not whole.take():
            return limited(round(whole.reset_after_s, 3), str(math.ceil(whole.reset_after_s)), "global")
        if not bucket.take():
            return limited(round(bucket.reset_after_s, 3), str(math.ceil(bucket.reset_after_s)), "user")
        return refusal(body, files)

    def _add_bucket_headers(self, known: _Webhook, response: web.Response) -> None:
        bucket = self._buckets[known.id]
        response.headers["X-RateLimit-Limit"] = str(bucket.limit)
        response.headers["X-RateLimit-Remaining"] = str(bucket.limit - bucket.used)
        response.headers["X-RateLimit-Reset"] = f"{time.time() + bucket.reset_after_s:.3f}"
        response.headers["X-RateLimit-Reset-After"] = f"{bucket.reset_after_s:.3f}"
        response.headers["X-RateLimit-Bucket"] = "7a3f0e0c"

    def _store(self, webhook: str, body: Mapping[str, object], files: Mapping[str, bytes]) -> Post:
        number = int(time.time() * 1000 - 1_420_070_400_000) << 22 | len(self.messages) & 0xFFF  # a snowflake
        post = Post(str(number), webhook, str(body.get("content") or ""), body, files, time.monotonic())
        self.messages.append(post)
        if self.on_post is not None:
            self.on_post(post)
        return post


def _stored(post: Post, known: _Webhook, wait: str) -> web.Response:
    if wait not in ("true", "True", "1"):
        return answer(204, None)
    author = {"bot": True, "id": known.id, "username": post.body.get("username") or known.name}
    return answer(200, {"id": post.id, "type": 0, "content": post.content, "webhook_id": known.id, "author": author})


async def _serve(port: int, names: list[str], limit: int, window_s: float) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with FakeDiscord(limit=limit, window_s=window_s, port=port, on_post=_show) as discord:
        for name in names:
            _say(f"{name} {discord.webhook(name, token=f'fake-token-of-{name}')}")
        await stop.wait()


def _show(post: Post) -> None:
    _say(f"--- {post.webhook}, message {post.id}\n{post.content}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _main() -> None:
    options = argparse.ArgumentParser(
        prog="python -m agentrt.testing.fake_discord", description="A Discord on loopback that prints what it gets."
    )
    options.add_argument("--port", type=int, default=0, help="port to listen on (default: a free one)")
    options.add_argument("--webhook", action="append", metavar="NAME", help="a webhook to offer; may be repeated")
    options.add_argument("--limit", type=int, default=5, help="posts per webhook and window (default: 5)")
    options.add_argument("--window-s", type=float, default=2.0, help="length of the window in seconds (default: 2)")
    given = options.parse_args()
    asyncio.run(_serve(given.port, given.webhook or ["default"], given.limit, given.window_s))


if __name__ == "__main__":
    _main()
