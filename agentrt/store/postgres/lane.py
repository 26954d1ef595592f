"""Connections: a lane is one connection that serves one statement at a time, made when first needed and again when lost.

No pool of the driver: its release runs a reset query, which costs more than the statements between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg

from agentrt.config import redact
from agentrt.errors import (
    AgentrtError,
    AskCycle,
    BudgetExceeded,
    ConfigError,
    StoreBusy,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from agentrt.store.postgres.arrays import parameters
from agentrt.store.sql import Statement

connect_timeout_s = 10.0
command_timeout_s = 30.0
idle_lane_s = 30.0
turn_within_s = 0.5
_repeats_max = 5

# The server-side answer to a client that vanished without a word: without these its row locks live for two hours.
server_settings = {
    "application_name": "agentrt",
    "jit": "off",
    "statement_timeout": "30000",
    "idle_in_transaction_session_timeout": "30000",
    "tcp_keepalives_idle": "15",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "20000",
}

connection_errors = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,  # a demoted primary: this session stays read-only for life
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.ObjectNotInPrerequisiteStateError,  # the database does not accept connections for now
    ConnectionError,
    TimeoutError,
    OSError,
)
_refused = (
    asyncpg.InvalidPasswordError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
)
_refused_values = (
    asyncpg.DataError,  # also the driver's own word for an argument that it cannot encode
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
)
_own_errors: dict[str, type[AgentrtError]] = {"AR001": AskCycle, "AR002": BudgetExceeded}
_again = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
_no_tables = (asyncpg.UndefinedTableError, asyncpg.UndefinedFunctionError, asyncpg.InvalidSchemaNameError)


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn the driver's errors into agentrt's. The text names what was being done, never the address's password."""
    try:
        yield
    except _refused_values as error:
        raise StoreRefused(f"{doing}: {_message(error)}") from None
    except _refused as error:
        raise ConfigError(
            f"The database refuses this address: {_message(error)}. Check --database or AGENTRT_DATABASE_URL."
        ) from None
    except _no_tables as error:
        raise StoreError(f"{doing}: {_message(error)}. Run 'agentrt migrate' to make the tables.") from None
    except asyncpg.LockNotAvailableError as error:  # for the driver a kind of those below
        raise StoreBusy(f"{doing}: {_message(error)}") from None
    except connection_errors as error:
        text = _message(error) or type(error).__name__
        raise StoreUnavailable(f"{doing}: the database cannot be reached ({text}).") from None
    except asyncpg.PostgresError as error:
        if error.sqlstate in _own_errors:  # raised by our functions, see the migrations
            raise _own_errors[error.sqlstate](error.detail or _message(error).removeprefix("agentrt: ")) from None
        hint = f" {error.hint}" if getattr(error, "hint", None) else ""
        raise StoreError(f"{doing}: {_message(error)}{hint}") from None
    except ValueError:  # the driver cannot read the address; its text would quote a part of it
        raise ConfigError(
            f"{doing}: the database address cannot be read. Check --database or AGENTRT_DATABASE_URL."
        ) from None


def _message(error: BaseException) -> str:
    """The first line of the message alone: the server's details quote the row, and with it a payload."""
    text = str(error.args[0] if isinstance(error, asyncpg.PostgresError) and error.args else error)
    return redact(text.splitlines()[0] if text else "")


async def connect(dsn: str) -> asyncpg.Connection:
    """A new connection with agentrt's session settings. Raises what `translated` makes of it."""
    with translated("connect"):
        return await asyncpg.connect(
            dsn, timeout=connect_timeout_s, command_timeout=command_timeout_s, server_settings=server_settings
        )


class Lane:
    """One connection for one statement at a time; the callers queue."""

    def __init__(self, dsn: str, timeout_s: float = command_timeout_s) -> None:
        self._dsn = dsn
        self._timeout_s = timeout_s
        self._connection: asyncpg.Connection | None = None
        self._lock = asyncio.Lock()
        self._callers = 0  # one that waits for the lock has taken the lane as much as one that holds it
        self.statements = 0  # sent so far: each is a round trip

    @property
    def busy(self) -> bool:
        return self._callers > 0

    async def fetch(self, statement: Statement, *values: Any, answer_s: float | None = None) -> list[asyncpg.Record]:
        """Run a statement; without an answer it is given up after `answer_s`. A deadlock is repeated: it changed nothing."""
        self._callers += 1
        try:
            async with self._lock:
                return await self._fetch(statement, values, answer_s)
        finally:
            self._callers -= 1

    async def fetch_within(
        self, wait_s: float, statement: Statement, *values: Any, answer_s: float | None = None
    ) -> list[asyncpg.Record]:
        """As `fetch`; raises `TimeoutError`, and has sent nothing, when the lane is not free within that time."""
        self._callers += 1
        try:
            async with asyncio.timeout(wait_s):
                await self._lock.acquire()
            try:
                return await self._fetch(statement, values, answer_s)
            finally:
                self._lock.release()
        finally:
            self._callers -= 1

    async def _fetch(
        self, statement: Statement, values: tuple[Any, ...], answer_s: float | None
    ) -> list[asyncpg.Record]:
        for repeat in range(_repeats_max + 1):
            with translated(statement.name):
                try:
                    return await self._fetch_once(statement, values, answer_s or self._timeout_s)
                except _again:
                    if repeat == _repeats_max:
                        raise
                except asyncpg.LockNotAvailableError:
                    raise
                except connection_errors:
                    self.drop()
                    raise
            await asyncio.sleep(0.01 * 2**repeat)
        raise AssertionError("unreachable")

    async def _fetch_once(
        self, statement: Statement, values: tuple[Any, ...], timeout_s: float
    ) -> list[asyncpg.Record]:
        if self._connection is None or self._connection.is_closed():
            self._connection = None
            self._connection = await connect(self._dsn)
        self.statements += 1
        rows: list[asyncpg.Record] = await self._connection.fetch(
            statement.text, *parameters(values), timeout=timeout_s
        )
        return rows

    def drop(self) -> None:
        """Forget the connection at once, without waiting for an answer from the other side."""
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.terminate()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            with translated("close"):
                try:
                    await connection.close(timeout=2)
                except connection_errors:
                    connection.terminate()


class Lanes:
    """A few lanes that share the statements of many tasks; those that were idle for long are closed."""

    def __init__(self, dsn: str, size: int, timeout_s: float = command_timeout_s) -> None:
        self._lanes = [Lane(dsn, timeout_s) for _ in range(size)]
        self._used_at: dict[int, float] = {}
        self._room = asyncio.Semaphore(
            size
        )  # who finds no lane free waits for any of them: the next one may wait for a lock

    async def fetch(self, statement: Statement, *values: Any, answer_s: float | None = None) -> list[asyncpg.Record]:
        async with self._room:
            with self._one_fate():
                return await self._pick().fetch(statement, *values, answer_s=answer_s)

    async def fetch_in_turn(
        self, statement: Statement, *values: Any, answer_s: float | None = None
    ) -> list[asyncpg.Record]:
        """On the first lane, after what is under way there: what happens by the clock opens another only when that takes long."""
        self._used_at[0] = asyncio.get_running_loop().time()
        try:
            with self._one_fate():
                return await self._lanes[0].fetch_within(turn_within_s, statement, *values, answer_s=answer_s)
        except TimeoutError:
            return await self.fetch(statement, *values, answer_s=answer_s)

    @contextmanager
    def _one_fate(self) -> Iterator[None]:
        """Where one connection is lost the idle ones are made anew: who used a silent one would wait in vain for its answer."""
        try:
            yield
        except StoreUnavailable:
            for lane in self._lanes:
                if not lane.busy:
                    lane.drop()
            raise

    def _pick(self) -> Lane:
        """The first lane that is free, so that the later ones fall idle. None is when the first serves what comes in turn."""
        index = next((index for index, lane in enumerate(self._lanes) if not lane.busy), 0)
        self._used_at[index] = asyncio.get_running_loop().time()
        return self._lanes[index]

    @property
    def statements(self) -> int:
        return sum(lane.statements for lane in self._lanes)

    async def close_idle(self) -> None:
        """Close the connections that nothing used for `idle_lane_s`."""
        now = asyncio.get_running_loop().time()
        for index, lane in enumerate(self._lanes):
            if not lane.busy and now - self._used_at.get(index, now) > idle_lane_s:
                self._used_at.pop(index)
                await lane.close()

    async def close(self) -> None:
        for lane in self._lanes:
            await lane.close()
