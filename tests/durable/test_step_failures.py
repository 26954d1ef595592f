"""Failures as data: the `except` clause that catches on the first run catches on a replay, whatever was raised."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

import agentrt
from agentrt import Fail, Retry, RetryAfter, agent, current, step
from tests.conftest import Start, supervising
from tests.support import Sql

quick = Retry(max_attempts=3, base_s=0.01, factor=1)


class Busy(Exception):
    pass


class Coded(ValueError):
    def __init__(self, *, code: int, hint: str) -> None:
        super().__init__(f"{hint}: {code}")
        self.code = code
        self.hint = hint


class Holding(RuntimeError):
    def __init__(self, text: str) -> None:
        super().__init__(text, threading.Lock())
        self.file = open(os.devnull)  # noqa: SIM115 - it is still open where it is looked at
        self.where = "there"


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Leaky(Exception):
    def __init__(self) -> None:
        super().__init__("token quince-walnut", {"header": ["Bearer quince-walnut"]}, ("quince-walnut",))
        self.url = "postgresql://me:turnip@host/name"
        self.headers = {"authorization": "quince-walnut"}


class Slotted(LookupError):
    __slots__ = ("row",)


def _local() -> NoReturn:
    class Local(KeyError):
        pass

    raise Local("here")


def _missing_file() -> NoReturn:
    os.stat("/nonexistent/file")
    raise AssertionError("unreachable")


def _group() -> NoReturn:
    raise ExceptionGroup("both", [Busy("left"), ExceptionGroup("inner", [OSError(errno.ENOENT, "gone")])])


def _undecodable() -> NoReturn:
    b"\xff".decode()
    raise AssertionError("unreachable")


def _raising(error: BaseException) -> Callable[[], NoReturn]:
    def fail() -> NoReturn:
        raise error

    return fail


def _seen(error: Exception) -> dict[str, Any]:
    """What an agent can see of an error."""
    try:
        text = str(error)
    except Exception as worse:
        text = f"str: {worse}"
    return {
        "type": type(error).__name__,
        "text": text,
        "attributes": {name: getattr(error, name, None) for name in ("code", "hint", "where", "errno", "filename")},
        "members": [_seen(member) for member in getattr(error, "exceptions", ())],
    }


@pytest.mark.parametrize(
    ("fail", "catches", "seen"),
    [
        (_raising(Busy("now")), Busy, {"type": "Busy", "text": "now"}),
        (_raising(ZeroDivisionError("by 0")), ArithmeticError, {"type": "ZeroDivisionError", "text": "by 0"}),
        (_raising(KeyError("name")), KeyError, {"text": "'name'"}),
        (_raising(Coded(code=7, hint="try")), Coded, {"text": "try: 7", "attributes": {"code": 7, "hint": "try"}}),
        (
            _raising(ConnectionResetError(errno.ECONNRESET, "cut")),
            ConnectionError,
            {"type": "ConnectionResetError", "attributes": {"errno": errno.ECONNRESET}},
        ),
        (
            _missing_file,
            FileNotFoundError,
            {
                "text": "[Errno 2] No such file or directory: '/nonexistent/file'",
                "attributes": {"errno": errno.ENOENT, "filename": "/nonexistent/file"},
            },
        ),
        (_undecodable, UnicodeDecodeError, {"type": "UnicodeDecodeError"}),
        (_raising(Holding("kept")), Holding, {"type": "Holding", "attributes": {"where": "there"}}),
        (_raising(Mute()), Mute, {"type": "Mute"}),
        (_raising(Slotted("row")), Slotted, {"text": "row"}),
        (_local, KeyError, {"type": "Local", "text": "'here'"}),
        (_raising(asyncio.QueueEmpty()), asyncio.QueueEmpty, {"type": "QueueEmpty", "text": ""}),
        (_raising(StopIteration("end")), RuntimeError, {}),
        (_group, ExceptionGroup, {"type": "ExceptionGroup", "text": "both (2 sub-exceptions)"}),
    ],
)
async def test_the_same_clause_catches_the_same_on_the_first_run_and_on_a_replay(
    database: str, client: agentrt.Client, fail: Callable[[], Any], catches: type[Exception], seen: dict[str, Any]
) -> None:
    runs = 0
    caught: list[dict[str, Any]] = []

    def work() -> Any:
        nonlocal runs
        runs += 1
        return fail()

    @agent(retry=quick)
    async def careful() -> str:
        try:
            await step(work)
        except catches as error:
            caught.append(_seen(error))
        if current().attempt == 1:
            raise RuntimeError("again")
        return "caught"

    async with supervising(database, careful):
        assert await careful.ask() == "caught"
    assert runs == 1
    assert len(caught) == 2
    assert caught[0] == caught[1]
    for name, value in seen.items():
        found = caught[0][name]
        assert (value.items() <= found.items()) if isinstance(value, dict) else value == found
    if catches is ExceptionGroup:
        left, inner = caught[0]["members"]
        assert (left["type"], left["text"]) == ("Busy", "left")
        assert inner["members"][0]["attributes"]["errno"] == errno.ENOENT


async def test_members_of_a_group_are_picked_by_except_star(database: str, client: agentrt.Client) -> None:
    @agent(retry=quick)
    async def picking() -> list[str]:
        seen = []
        try:
            await step(_group)
        except* Busy as group:
            seen += [str(error) for error in group.exceptions]
        except* FileNotFoundError:
            seen.append("gone")
        if current().attempt == 1:
            raise RuntimeError("again")
        return seen

    async with supervising(database, picking):
        assert await picking.ask() == ["left", "gone"]


async def test_secrets_in_a_failure_are_not_stored(
    database: str, client: agentrt.Client, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_TOKEN", "quince-walnut")
    words = ("quince-walnut", "turnip")

    @agent(retry=quick)
    async def leaking() -> str:
        try:
            await step(_raising(Leaky()))
        except Leaky as error:
            return repr((error.args, vars(error)))
        return ""

    async with supervising(database, leaking):
        said = await leaking.ask()
    stored = await sql.value("select failure::text from agentrt.steps")
    assert [word for word in words if word in stored] == []
    assert [word for word in words if word in said] == []


async def test_the_class_of_a_failure_may_be_missing_in_the_process_that_replays_it(
    start: Start, client: agentrt.Client, tmp_path: Any
) -> None:
    source = """
import os, signal
from agentrt import Retry, StepFailed, agent, current, step
try:
    from own_errors import Odd
except ImportError:
    Odd = None

async def work():
    print("ran", flush=True)
    raise Odd("at home")

@agent(retry=Retry(base_s=0.01))
async def far() -> list[str]:
    try:
        await step(work)
    except LookupError as error:
        said = [type(error).__name__, str(error), str(isinstance(error, StepFailed)), type(error).__module__]
        if Odd is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        said.append(error.traceback.strip().splitlines()[-1])
        return said
"""
    module = tmp_path / "own_errors.py"
    module.write_text("class Odd(LookupError):\n    pass\n")
    first = start("run", "agents.py", "--lease", "1", "--poll", "1", source=source, name="first")
    job = await agentrt.to("far").send()
    assert await first.ended() == -9
    module.unlink()
    for cached in tmp_path.glob("__pycache__/own_errors*"):
        cached.unlink()
    second = start("run", "agents.py", "--lease", "1", "--poll", "1", name="second")

    assert await job.result(timeout_s=20) == ["Odd", "at home", "True", "own_errors", "own_errors.Odd: at home"]
    assert "ran" not in second.log().splitlines()


async def test_a_failure_that_was_caught_stays_and_one_that_escaped_runs_again(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    runs: Counter[str] = Counter()

    async def work(name: str, fails: int) -> str:
        runs[name] += 1
        if runs[name] <= fails:
            raise Busy(name)
        return name

    @agent(retry=quick)
    async def both() -> list[str]:
        said = []
        try:
            said.append(await step(work, "caught", 1, name="caught"))
        except Busy:
            said.append("was busy")
        said.append(await step(work, "fine", 0, name="fine"))
        said.append(await step(work, "escaped", 2, name="escaped"))
        return said

    async with supervising(database, both):
        assert await both.ask() == ["was busy", "fine", "escaped"]
    assert runs == {"caught": 1, "fine": 1, "escaped": 3}
    rows = await sql.rows("select step, failure is not null as failed, done from agentrt.steps order by seq")
    assert [tuple(row.values()) for row in rows] == [
        ("caught#0", True, True),
        ("fine#0", False, True),
        ("escaped#0", False, True),
    ]


@pytest.mark.parametrize("wrap", ["cause", "group"])
async def test_a_failure_that_escapes_inside_another_error_runs_again(
    database: str, client: agentrt.Client, wrap: str
) -> None:
    runs = 0

    async def work() -> str:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise Busy("once")
        return "done"

    @agent(retry=quick)
    async def wrapping() -> str:
        if wrap == "group":
            async with asyncio.TaskGroup() as group:
                task = group.create_task(step(work))
            return task.result()
        try:
            return await step(work)
        except Busy as error:
            raise RuntimeError("it failed") from error

    async with supervising(database, wrapping):
        assert await wrapping.ask() == "done"
    assert runs == 2


async def test_fail_and_retry_after_keep_their_meaning_when_they_come_out_of_a_step(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    runs: Counter[str] = Counter()

    async def never(name: str) -> None:
        runs[name] += 1
        raise Fail("it cannot be")

    async def later(name: str) -> str:
        runs[name] += 1
        if runs[name] < 3:
            raise RetryAfter(0.1, "busy")
        return "at last"

    @agent(retry=quick)
    async def failing(retried: bool) -> None:
        await step(never, f"never {retried}", retry=quick if retried else None)

    @agent(retry=Retry(max_attempts=1))
    async def waiting(retried: bool) -> str:
        return await step(later, f"later {retried}", retry=Retry(max_attempts=1) if retried else None)

    async with supervising(database, failing, waiting):
        for retried in (False, True):
            with pytest.raises(agentrt.JobFailed) as failed:
                await failing.ask(retried)
            assert (failed.value.reason, "it cannot be" in failed.value.error) == ("fatal", True)
            assert await waiting.ask(retried) == "at last"
    assert runs == {"never False": 1, "never True": 1, "later False": 3, "later True": 3}
    reasons = await sql.rows("select reason, count(*) from agentrt.attempts group by 1 order by 1")
    assert [tuple(row.values()) for row in reasons] == [("fatal", 2), ("later", 2)]
    tries = await sql.rows("select tries from agentrt.steps where step = 'later#0'")
    assert [row["tries"] for row in tries] == [0, 0], "they use up no try"


async def test_a_stored_failure_is_shown_with_its_class_text_and_traceback(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    @agent(retry=Retry(max_attempts=1))
    async def failing() -> None:
        await step(_raising(Coded(code=3, hint="see")))

    async with supervising(database, failing):
        with pytest.raises(agentrt.JobFailed, match=r"test_step_failures\.Coded: see: 3"):
            await failing.ask()
    stored = json.loads(await sql.value("select failure::text from agentrt.steps"))
    assert stored["kind"].endswith("test_step_failures.Coded")
    assert stored["text"] == "see: 3"
    assert "raise error" in stored["traceback"]
