"""The HTTP door of a supervisor: is it alive, is it ready, its counters, a page for people, and the answers to questions.

It has no login: whoever reaches the address may read names, states and error texts of jobs (no payloads, no results). A question
is shown, and can be answered, by its signed link only; all else just reads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from agentrt.errors import ConfigError

if TYPE_CHECKING:
    from agentrt.engine.supervisor import Supervisor
    from agentrt.store import Store

_extra = ("aiohttp", "prometheus_client")


@asynccontextmanager
async def serving(address: str, supervisor: Supervisor, store: Store) -> AsyncIterator[str]:
    """Serve `/healthz`, `/readyz`, `/metrics`, `/state.json`, `/decide/ID` and the page `/` while the block runs.

    Yields the URL of the page. What fails in a request is answered and logged there; the supervisor does not notice it.

    Args:
        address: HOST:PORT, or [HOST]:PORT for IPv6; port 0 takes a free one.
        store: told only where the database is: the looks use a connection of their own.

    Raises:
        ConfigError: the address is malformed or cannot be listened on, or the extra `http` is not installed. Nothing
            listens then.
    """
    host, port = _host_and_port(address)
    try:
        from agentrt.web.server import listening
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _extra:
            raise
        raise ConfigError(
            f"--http needs the package {error.name!r}. Install it with: pip install 'agentrt[http]'"
        ) from None
    async with listening(host, port, supervisor, store) as url:
        yield url


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.strip().rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_name = bare != "" and (bare != host or ":" not in bare) and not set(bare) & set("[]/@ ")
    if not is_name or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise ConfigError(
            f"--http is {address!r}; it must be HOST:PORT, such as 127.0.0.1:8080, 0.0.0.0:8080 or [::1]:8080. Port 0 takes a"
            " free one."
        )
    return bare, int(port)
