"""A TCP proxy before a database: each connection, in each direction, can be held, dropped or cut, as a bad network does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import parse_qs, quote, unquote, urlsplit

seen_bytes_max = 1024 * 1024
_sync = b"S\x00\x00\x00\x04"  # PostgreSQL's manual, "Message Formats": Sync


class Way:
    """One direction of a connection. Held: bytes (an end too) arrive after `release`. Dropped: they never arrive."""

    def __init__(self) -> None:
        self._passing = asyncio.Event()
        self._passing.set()
        self._dropping = False

    def hold(self) -> None:
        self._passing.clear()

    def drop(self) -> None:
        self._dropping = True

    def release(self) -> None:
        self._dropping = False
        self._passing.set()

    async def carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        see: Callable[[bytes], None] = lambda _data: None,
    ) -> None:
        """Carry bytes until one side ends; an end is as late or as lost as bytes are. `see` sees them before the other side."""
        with suppress(ConnectionError):
            while True:
                data = await reader.read(65536)
                see(data)
                await self._passing.wait()
                if self._dropping:
                    if not data:
                        return
                    continue
                if not data:
                    break
                writer.write(data)
                await writer.drain()
        writer.close()


class Link:
    """One connection through the proxy, kept after its end."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.from_client = Way()
        self.from_server = Way()
        self.seen = bytearray()  # what the client said, so that connections can be told apart
        self.answers_lost = False
        self._writers = (client, server)

    @property
    def listens(self) -> bool:
        return b"LISTEN " in self.seen

    @property
    def statements(self) -> int:
        """How often the client asked and waited for the answer, by its Sync messages."""
        return self.seen.count(_sync)

    @property
    def open(self) -> bool:
        return not any(writer.is_closing() for writer in self._writers)

    def lose_answers(self) -> None:
        self.answers_lost = True
        self.from_server.drop()

    def hold(self) -> None:
        """Silence in both directions, and no end: what a firewall that forgot the connection does."""
        self.from_client.hold()
        self.from_server.hold()

    def cut(self) -> None:
        """End it for both sides at once."""
        for writer in self._writers:
            writer.transport.abort()


class Proxy:
    """`dsn` leads through the proxy; `links` holds every connection since its start."""

    def __init__(self, upstream: str) -> None:
        self._upstream = urlsplit(upstream)
        self.links: list[Link] = []
        self.lost_answer_to: bytes | None = None  # the first link that says this is not answered any more
        self.late_answer_to: bytes | None = None  # what answers the first link that says this is held
        self.refused = 0  # connections that ended at once, because the database did not answer
        self._tasks: set[asyncio.Task[None]] = set()
        self.dsn = ""

    @property
    def listening(self) -> list[Link]:
        """The open connections that said LISTEN."""
        return [link for link in self.links if link.open and link.listens]

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        query = parse_qs(self._upstream.query)
        if folder := query.get("host"):
            return await asyncio.open_unix_connection(f"{folder[0]}/.s.PGSQL.{query.get('port', ['5432'])[0]}")
        return await asyncio.open_connection(self._upstream.hostname or "127.0.0.1", self._upstream.port or 5432)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            server_reader, server_writer = await self._connect()
        except OSError:
            self.refused += 1
            writer.transport.abort()
            return
        link = Link(writer, server_writer)
        self.links.append(link)

        def see(data: bytes) -> None:
            if len(link.seen) < seen_bytes_max:
                link.seen += data
            if self.lost_answer_to is not None and self.lost_answer_to in data:
                self.lost_answer_to = None
                link.lose_answers()
            if self.late_answer_to is not None and self.late_answer_to in data:
                self.late_answer_to = None
                link.from_server.hold()

        try:
            await asyncio.gather(
                link.from_client.carry(reader, server_writer, see), link.from_server.carry(server_reader, writer)
            )
        except asyncio.CancelledError:  # the proxy ends; asyncio complains of a handler that was cancelled
            pass
        finally:
            link.cut()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Proxy]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        parts = self._upstream
        user = quote(unquote(parts.username or "postgres"), safe="")
        password = f":{quote(unquote(parts.password), safe='')}" if parts.password else ""
        self.dsn = f"postgresql://{user}{password}@127.0.0.1:{port}{parts.path}?sslmode=disable"
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
