"""`agentrt send`: one message from the shell, checked as if code had sent it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from agentrt.agent import Address, Agent, to
from agentrt.cli import render
from agentrt.cli.checks import live
from agentrt.cli.common import client_of, database_options, in_loop, json_option
from agentrt.cli.loading import load_agents
from agentrt.client import Client
from agentrt.config import setup_logging
from agentrt.errors import JobCancelled, JobError, JobFailed, PayloadInvalid, ReplyTimeout, UsageError
from agentrt.limits import delay_s_max, payload_bytes_max, require_within
from agentrt.model import NewJob, Result, Sent, State

_pair = re.compile(r"([^\W\d]\w*)=(.*)", re.DOTALL)
_input_bytes_max = 8 * payload_bytes_max  # as text, with escapes and white space, a payload is longer than when stored
_integer_digits_max = 4_000  # Python converts no more than 4,300
_forms = """one JSON object ('{"text": "hi"}'), '-' for one on standard input, or NAME=VALUE pairs"""


@click.command()
@click.argument("agent", metavar="AGENT")
@click.argument("payload", nargs=-1, metavar="[JSON | - | NAME=VALUE…]")
@database_options
@click.option("--key", metavar="KEY", help="The mailbox: its messages are handled one at a time, in order.")
@click.option("--delay", "delay_s", type=float, metavar="S", help="Not before so many seconds.")
@click.option("--at", metavar="TIME", help="Not before this time, ISO 8601 with a zone: 2026-12-01T09:00+01:00.")
@click.option("--priority", default=5, show_default=True, metavar="0–9", help="0 goes first.")
@click.option("--dedup", metavar="TEXT", help="At most one job of the agent for this text, also after it ended.")
@click.option("--max-attempts", type=int, metavar="N", help="Instead of what the agent says.")
@click.option("--from", "module", metavar="MODULE", help="Check the message against the agent in this module.")
@click.option("--wait", is_flag=True, help="Wait for the end and print the result; exit code 1 when it is no success.")
@click.option("--timeout", "timeout_s", type=float, metavar="S", help="With --wait: no longer than this.")
@json_option
def send(
    agent: str,
    payload: tuple[str, ...],
    database: str | None,
    schema: str,
    key: str | None,
    delay_s: float | None,
    at: str | None,
    priority: int,
    dedup: str | None,
    max_attempts: int | None,
    module: str | None,
    wait: bool,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Send a message to AGENT and print the job's id.

    The message is one JSON object, '-' for one on standard input, or NAME=VALUE pairs. A value that is JSON is taken as
    such (n=3, tags='["a"]', text='"3"'), any other as text. No message: an empty object.
    """
    if timeout_s is not None:
        if not wait:
            raise UsageError("--timeout is how long --wait waits: add --wait.")
        require_within("--timeout", timeout_s, 0.001, delay_s_max)
    if at is not None and delay_s is not None:
        raise UsageError("--at and --delay exclude each other: give one of them.")
    options: dict[str, Any] = {"key": key, "priority": priority, "dedup": dedup, "max_attempts": max_attempts}
    options |= {"delay_s": delay_s or 0.0, "run_at": None if at is None else _moment(at)}
    job = _message(agent, _payload(payload), module, options)
    in_loop(_send(job, database, schema, timeout_s, wait=wait, as_json=as_json))


async def _send(
    job: NewJob, database: str | None, schema: str, timeout_s: float | None, *, wait: bool, as_json: bool
) -> None:
    setup_logging("warning")  # the waiting client may have to say that the database is away; never on standard output
    async with client_of(database, schema) as client:
        (sent,) = await client.send([job])
        if sent.existed:
            render.complain(f"job {sent.id} has this --dedup already: nothing was sent.")
        else:
            await _warn_without_worker(client, job.agent)
        about = {"id": sent.id, "agent": job.agent, "key": job.key, "existed": sent.existed}
        if wait:
            await _wait(client, sent, about, timeout_s, as_json=as_json)
        elif as_json:
            render.print_json(about | {"state": await _state(client, sent.id)})
        else:
            click.echo(sent.id)


async def _wait(
    client: Client, sent: Sent, about: dict[str, object], timeout_s: float | None, *, as_json: bool
) -> None:
    """Print how the job ended. Raises `JobFailed`, `JobCancelled`, `ReplyTimeout`."""
    click.echo(f"job {sent.id}", err=True)
    problem: JobError | None = None
    try:
        ended = await client.wait(sent.id, timeout_s=timeout_s)
        problem = _problem(ended)
        about |= {"state": ended.state, "result": ended.result and render.json_value(ended.result)}
        about |= {"reason": ended.reason, "error": ended.error if problem is not None else None}
    except ReplyTimeout as error:
        problem = error
        about |= {"state": await _state(client, sent.id), "result": None, "reason": None, "error": None}
    if as_json:
        render.print_json(about)
    elif problem is None:
        render.print_json(about["result"])
    if problem is not None:
        raise problem


def _problem(ended: Result) -> JobError | None:
    error = render.plain(ended.error or "no error is recorded")
    if ended.state is State.failed:
        return JobFailed(ended.id, ended.agent, ended.reason or "error", error)
    return JobCancelled(ended.id, ended.agent, error) if ended.state is State.cancelled else None


async def _state(client: Client, job_id: int) -> str | None:
    row = await client.store.job(job_id)
    return None if row is None else row["state"]


async def _warn_without_worker(client: Client, agent: str) -> None:
    if not any(agent in supervisor["agents"] for supervisor in await client.store.supervisors() if live(supervisor)):
        render.complain(
            f"warning: no running supervisor knows agent {agent!r}; the job waits for one."
            " Start it with 'agentrt run MODULE' ('agentrt agents' lists who knows what)."
        )


# ------------------------------------------------------------------ what was typed


def _message(name: str, payload: dict[str, Any], module: str | None, options: dict[str, Any]) -> NewJob:
    """The checked and encoded message. Raises `PayloadInvalid`, `UsageError`."""
    address: Address[..., Any] = to(name)
    if module is not None:
        address = _agent_of(module, name)
        payload = address.decode_arguments(json.dumps(payload))
    if "self" in payload:
        raise PayloadInvalid(f"{name}.self", "an argument cannot have this name.")
    return address.options(**options).message(**payload).job


def _agent_of(module: str, name: str) -> Agent[..., Any]:
    agents = load_agents([module])
    if name not in agents:
        raise UsageError(f"Module {module!r} declares no agent {name!r}. Its agents: {', '.join(sorted(agents))}.")
    return agents[name]


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--at is {text[:60]!r}; it must be a time such as 2026-12-01T09:00+01:00.") from None
    if moment.utcoffset() is None:
        raise UsageError(f"--at is {text!r}, without a time zone. Add one: {text}Z for UTC, {text}+01:00, …")
    return moment


def _payload(words: Sequence[str]) -> dict[str, Any]:
    """The arguments that the words of the command line stand for. Raises `UsageError`."""
    if not words:
        return {}
    if words == ("-",):
        return _object(_standard_input(), "standard input")
    if len(words) == 1 and _pair.fullmatch(words[0]) is None:
        return _object(words[0], "the message")
    pairs: dict[str, Any] = {}
    for word in words:
        pair = _pair.fullmatch(word)
        if pair is None:
            raise UsageError(f"{_short(word)} is no NAME=VALUE pair. A message is {_forms}.")
        if pair[1] in pairs:
            raise UsageError(f"{pair[1]!r} is given twice.")
        pairs[pair[1]] = _value(pair[2])
    return pairs


def _standard_input() -> str:
    data = sys.stdin.buffer.read(_input_bytes_max + 1)
    if len(data) > _input_bytes_max:
        raise UsageError(
            f"Standard input is over {_input_bytes_max:,} bytes; a message may have {payload_bytes_max:,}."
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"Standard input is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}.") from None


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        value = _json(text)
    except ValueError as error:
        raise UsageError(f"{what} is no JSON: {error}. A message is {_forms}. Given: {_short(text)}.") from None
    if not isinstance(value, dict):
        kind = {list: "an array", str: "a text", bool: "true or false", type(None): "null"}.get(type(value), "a number")
        raise UsageError(f"{what} is {kind}, not a JSON object. A message is {_forms}. Given: {_short(text)}.")
    return value


def _value(text: str) -> object:
    try:
        return _json(text)
    except ValueError:
        return text


def _json(text: str) -> object:
    """JSON to the letter: no NaN, no integer rounded (orjson makes a float of 2**64), no name twice. Raises `ValueError`."""
    try:
        value: object = json.loads(text, parse_int=_integer, parse_constant=_constant, object_pairs_hook=_unique)
    except RecursionError:
        raise UsageError("The message is nested too deeply.") from None
    return value


def _integer(digits: str) -> int:
    if len(digits) > _integer_digits_max:
        raise UsageError(f"An integer has {len(digits):,} digits; at most 64 bits come back exact. Send it as text.")
    return int(digits)


def _constant(name: str) -> float:
    raise ValueError(f"{name} has no form in JSON")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"The JSON object names {twice!r} twice.")
    return found


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:80]}…")
