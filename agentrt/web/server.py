"""The HTTP server: its paths, and what keeps its failures away from the supervisor whose event loop it shares."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from agentrt.engine.supervisor import Supervisor
from agentrt.errors import ConfigError, StoreError
from agentrt.store import Store
from agentrt.web.decide import DecisionDoor
from agentrt.web.looks import Looks
from agentrt.web.metrics import Metrics
from agentrt.web.page import page, page_policy
from agentrt.web.state import View

log = structlog.get_logger("agentrt.web")
shutdown_s = 0.5  # so long may answers under way delay the end of the process
request_bytes_max = 4096  # nothing but an option of a question is ever sent here
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def listening(host: str, port: int, supervisor: Supervisor, store: Store) -> AsyncIterator[str]:
    """Serve while the block runs; yields the URL. Raises `ConfigError` when the address cannot be listened on."""
    looks = Looks(store)
    runner = web.AppRunner(
        _app(supervisor, looks),
        handle_signals=False,
        access_log=None,
        logger=_requests_log(),
        shutdown_timeout=shutdown_s,
        keepalive_timeout=15,
    )
    resting = asyncio.ensure_future(looks.rest_when_idle())
    try:
        url = await _start(runner, host, port)
        log.info("http.serving", url=url)
        yield url
    finally:
        resting.cancel()
        await asyncio.wait([resting])
        try:
            await runner.cleanup()
            await looks.close()
        except Exception:  # the supervisor's own end must not depend on its door
            log.exception("http.not_closed")


async def _start(runner: web.AppRunner, host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    try:
        await runner.setup()
        site = web.TCPSite(runner, host, port)
        await site.start()
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"--http {shown}:{port} cannot be listened on: {_reason(error)}. Choose another address."
        ) from None
    return f"http://{shown}:{site.port}/"


def _reason(error: OSError | UnicodeError) -> str:
    """The system's words; asyncio wraps them in its own, and name look-ups have numbers below 0 and words of their own."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno) if error.errno > 0 else str(error.strerror)
    return str(error)


def _app(supervisor: Supervisor, looks: Looks) -> web.Application:
    metrics = Metrics(supervisor)
    view = View(supervisor, looks)

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")  # that it is answered at all says that the loop moves

    async def readyz(_request: web.Request) -> web.Response:
        health = supervisor.health()
        return web.json_response(health, status=200 if health["ok"] else 503)

    async def metrics_text(request: web.Request) -> web.Response:
        counts = open_decisions = None
        with suppress(StoreError):  # the supervisor reports the outage; its own counters are wanted all the more
            counts, open_decisions = await looks.counts(), await looks.open_decisions()
        body, content_type = metrics.text(request.headers.get("Accept", ""), counts, open_decisions)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def state_json(_request: web.Request) -> web.Response:
        return web.json_response(await view.now())

    async def index(_request: web.Request) -> web.Response:
        return web.Response(text=page, content_type="text/html", headers={"Content-Security-Policy": page_policy})

    app = web.Application(middlewares=[_guard], client_max_size=request_bytes_max)
    handlers: dict[str, Handler] = {
        "/healthz": healthz,
        "/readyz": readyz,
        "/metrics": metrics_text,
        "/state.json": state_json,
        "/": index,
    }
    for path, handler in handlers.items():
        app.router.add_get(path, handler)
    door = DecisionDoor(looks)
    app.router.add_get("/decide/{id}", door.show)
    app.router.add_post("/decide/{id}", door.answer)
    return app


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer what fails, and keep answers out of caches and foreign frames."""
    try:
        response = await handler(request)
    except web.HTTPException as error:
        response = web.Response(text=f"{error.status} {error.reason}\n", status=error.status, headers=_allowed(error))
    except Exception:
        log.exception("http.failed", path=request.path)
        response = web.Response(text="This request failed; the log of the supervisor says why.\n", status=500)
    response.headers["Server"] = "agentrt"
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["X-Frame-Options"] = "DENY"
    response.headers["Referrer-Policy"] = "no-referrer"
    return response


def _allowed(error: web.HTTPException) -> dict[str, str]:
    return {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}


class _ToLog(logging.Handler):
    """The server's own messages, as events: what clients get wrong only for who asks, the rest as errors."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        quiet = record.levelno < logging.ERROR or isinstance(error, HttpProcessingError)
        (log.debug if quiet else log.error)(
            "http.server", message=record.getMessage(), error=repr(error) if error else None
        )


def _requests_log() -> logging.Logger:
    logger = logging.Logger("agentrt.web.requests")  # outside of the tree, so that no other handler repeats its lines
    logger.addHandler(_ToLog())
    return logger
