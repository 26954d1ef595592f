"""The face: what a declaration refuses, what a sender may ask for, and that types go all the way through."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import agentrt
from agentrt import Agent, PayloadInvalid, Retry, UsageError, agent
from agentrt.limits import attempts_max, delay_s_max, priority_lowest


def test_the_types_of_parameters_and_result_go_through_every_way_to_send() -> None:
    """Strict, so that an ignored error which is none fails too."""
    tests = Path(__file__).parent
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(tests / "typed_face.py")]
    checked = subprocess.run(command, cwd=tests.parent, capture_output=True, text=True, timeout=110, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


# ------------------------------------------------------------------ declaring


@agent
async def writer(topic: str, words: int = 100, *, note: str | None = None) -> str:
    """Writes."""
    return topic * words


loose: Agent[..., str] = writer  # as a caller without a type checker sees it


def fine(x: int) -> int:
    return x


def test_a_declaration_takes_name_and_documentation_from_its_function_and_touches_nothing_else() -> None:
    assert (writer.name, writer.__doc__) == ("writer", "Writes.")
    assert (writer.concurrency, writer.limit, writer.timeout_s, writer.lease_s, writer.order) == (
        None,
        None,
        None,
        None,
        "strict",
    )
    assert writer.retry == Retry()
    assert repr(writer) == "<Agent writer>"
    assert repr(writer["alice"]) == "<Agent writer['alice']>"
    named = agent(name="other", concurrency=2, limit=3, timeout_s=4, lease_s=5, order="loose", retry=Retry(1))(fine)
    assert (named.name, named.concurrency, named.limit, named.timeout_s, named.lease_s, named.order) == (
        "other",
        2,
        3,
        4,
        5,
        "loose",
    )


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"concurrency": 0}, "agent 'fine': concurrency is 0"),
        ({"concurrency": -1}, "concurrency is -1"),
        ({"concurrency": 2.5}, "concurrency is 2.5"),
        ({"limit": 0}, "limit is 0"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"timeout_s": -1}, "timeout_s"),
        ({"timeout_s": float("nan")}, "timeout_s is nan"),
        ({"timeout_s": float("inf")}, "timeout_s is inf"),
        ({"timeout_s": "5"}, "timeout_s is '5'"),
        ({"lease_s": 0.01}, "lease_s is 0.01"),
        ({"lease_s": delay_s_max * 2}, "lease_s"),
        ({"order": "any"}, "order is 'any'; it must be 'strict' or 'loose'"),
        ({"name": "x" * 201}, "agent name has 201 characters"),
        ({"name": "a\x00b"}, "agent name"),
        ({"name": "\ud800"}, "agent name"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_a_setting_out_of_its_limits_is_refused_where_it_is_declared(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        agent(**settings)(fine)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"max_attempts": 2.5},
        {"max_attempts": attempts_max + 1},
        {"base_s": -1},
        {"base_s": float("nan")},
        {"factor": 0.5},
        {"factor": float("inf")},
        {"cap_s": -1},
        {"jitter": 1.5},
        {"jitter": -0.1},
    ],
    ids=str,
)
def test_a_retry_policy_out_of_its_limits_is_refused_where_it_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=rf"{next(iter(wrong))} is .* must be a (whole )?number from"):
        Retry(**wrong)


@pytest.mark.parametrize("wrong", [int, "text", 5, None], ids=str)
def test_only_a_function_can_be_an_agent(wrong: Any) -> None:
    with pytest.raises(UsageError, match="goes on a coroutine function or a plain function"):
        Agent(wrong)


@pytest.mark.parametrize("parameters", ["*rest", "**more", "a, /"])
def test_a_function_with_a_parameter_that_no_message_can_name_is_refused(parameters: str) -> None:
    names: dict[str, Any] = {}
    exec(f"async def odd({parameters}): ...", names)
    with pytest.raises(UsageError, match=r"'odd': parameter .* Give each argument a name of its own"):
        agent(names["odd"])


def test_annotations_that_are_no_schema_are_refused_with_the_agents_name() -> None:
    async def odd(lock: asyncio.Lock) -> None: ...
    async def odd_result() -> asyncio.Lock:
        return asyncio.Lock()

    for fn in (odd, odd_result):
        with pytest.raises(UsageError, match=fn.__name__):
            agent(fn)


# ------------------------------------------------------------------ asking for options


good: list[dict[str, Any]] = [
    {"key": "x" * 200},
    {"dedup": "😀"},
    {"priority": 0},
    {"priority": priority_lowest},
    {"delay_s": 0},
    {"delay_s": delay_s_max},
    {"max_attempts": 1},
    {"max_attempts": attempts_max},
    {"timeout_s": 0.001},
    {"timeout_s": None},
    {"run_at": datetime(1999, 1, 1, tzinfo=UTC)},
]
bad: list[dict[str, Any]] = [
    {"key": ""},
    {"key": "x" * 201},
    {"key": 5},
    {"key": "a\x00"},
    {"dedup": ""},
    {"dedup": "\ud800"},
    {"priority": -1},
    {"priority": priority_lowest + 1},
    {"priority": "high"},
    {"priority": float("nan")},
    {"priority": 1.5},
    {"delay_s": -0.1},
    {"delay_s": delay_s_max + 1},
    {"delay_s": float("nan")},
    {"delay_s": "5"},
    {"delay_s": timedelta(5)},
    {"max_attempts": 0},
    {"max_attempts": attempts_max + 1},
    {"max_attempts": 2.5},
    {"timeout_s": 0},
    {"timeout_s": -1},
    {"timeout_s": float("inf")},
    {"run_at": datetime(2030, 1, 1)},  # noqa: DTZ001 - the fault under test
    {"run_at": "2030-01-01"},
    {"run_at": 1_900_000_000},
    {"run_at": datetime.now(UTC) + timedelta(seconds=delay_s_max, days=1)},
]


@pytest.mark.parametrize("options", good, ids=lambda options: ascii(options)[:40])
async def test_options_at_their_limits_are_taken_and_stored(options: dict[str, Any], client: agentrt.Client) -> None:
    assert (await writer.options(**options).send("x")).id


@pytest.mark.parametrize("options", bad, ids=lambda options: ascii(options)[:40])
async def test_options_out_of_their_limits_are_refused_by_name_before_anything_is_sent(
    options: dict[str, Any], client: agentrt.Client
) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        await writer.options(**options).send("x")


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match=r"writer\.options\(\) does not know delay, prio\. It takes: key, priority, delay_s"
    ):
        writer.options(delay=5, prio=1)


def test_options_make_a_new_address_and_leave_the_agent_as_it_was() -> None:
    changed = writer.options(delay_s=5)["alice"].options(priority=1)
    job = changed.message("x").job
    assert (job.delay_s, job.key, job.priority) == (5, "alice", 1)
    plain = writer.message("x").job
    assert (plain.delay_s, plain.key, plain.priority) == (0, None, 5)
    assert changed["bob"].message("x").job.key == "bob"


# ------------------------------------------------------------------ messages


def test_arguments_are_stored_by_name_however_they_were_given() -> None:
    by_place, by_name = (
        writer.message("x", 5, note="n").job.payload,
        writer.message(note="n", words=5, topic="x").job.payload,
    )
    assert by_place == b'{"topic":"x","words":5,"note":"n"}'
    assert writer.decode_arguments(by_place.decode()) == writer.decode_arguments(by_name.decode())


@pytest.mark.parametrize(
    ("give", "told"),
    [
        (loose.message, "missing a required argument: 'topic'"),
        (lambda: loose.message("x", 1, 2), "too many positional"),
        (lambda: loose.message("x", more=1), "unexpected keyword argument 'more'"),
        (lambda: loose.message("x", topic="y"), "multiple values"),
        (lambda: agentrt.to("elsewhere").message("x"), "Name each argument"),
    ],
)
def test_arguments_that_do_not_fit_the_function_are_refused_with_its_signature(
    give: Callable[[], object], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        give()


@pytest.mark.parametrize(
    ("arguments", "path"),
    [({"topic": 5}, "writer.topic"), ({"topic": "x", "words": "5"}, "writer.words"), ({"topic": None}, "writer.topic")],
)
def test_an_argument_of_the_wrong_type_is_refused_with_its_path(arguments: dict[str, Any], path: str) -> None:
    with pytest.raises(PayloadInvalid) as refused:
        writer.message(**arguments)
    assert refused.value.path == path


def test_a_default_is_not_stored_so_that_a_later_version_may_change_it() -> None:
    assert writer.message("x").job.payload == b'{"topic":"x"}'


async def test_without_a_connection_a_send_says_what_to_write() -> None:
    with pytest.raises(UsageError, match=r"async with agentrt\.connect"):
        await writer.send("x")
    with pytest.raises(UsageError, match=r"async with agentrt\.connect"):
        await writer.ask("x")


async def test_a_call_runs_the_function_here_with_its_defaults_and_its_own_errors() -> None:
    @agent
    def failing(x: int) -> int:
        raise LookupError(x)

    assert await writer("x", words=3) == "xxx"
    assert await agent(fine)(5) == 5
    with pytest.raises(LookupError, match="7"):
        await failing(7)
    with pytest.raises(UsageError, match="outside of a job"):
        agentrt.current()
