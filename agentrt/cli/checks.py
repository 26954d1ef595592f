"""What the doctor looks at. Each check is a function from what the store answered to a verdict with its remedy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal
from uuid import uuid4

from agentrt.cli.render import duration
from agentrt.errors import SchemaOutdated, StoreError, StoreUnavailable
from agentrt.model import JobRow, State
from agentrt.store import Store

live_s = 30.0  # a supervisor beats every 9 s; `why` counts with the same number
_version_min = 140_000
_slow_s = 0.05
_bell_s = 3.0
_late_s = 30.0
_old_transaction_s = 300.0
_skew_s = 2.0
_queue_share = 0.1
_dead_rows = 50_000
_vacuum_s = 600.0  # autovacuum looks once a minute
_asks = 3
_names_max = 5

Status = Literal["ok", "warn", "fail"]


@dataclass
class Check:
    """A verdict. `remedy` says what to do; empty when nothing is to be done."""

    name: str
    status: Status
    text: str
    remedy: str = ""


def live(supervisor: JobRow) -> bool:
    """Whether a row of `supervisors` belongs to a process that runs, as far as its beat tells."""
    silent_s: float = supervisor["silent_s"]
    return silent_s < live_s


async def examine(store: Store) -> list[Check]:
    """All checks that can be made. Raises `StoreUnavailable` when the database cannot be reached, now or half-way."""
    server, latency_s, skew_s = await _ask_server(store)
    checks = [database(server, latency_s), clock(skew_s), await _checked("tables", lambda: _tables(store))]
    checks.append(await _checked("listen", lambda: _listen(store)))
    if checks[2].status != "fail":
        checks += await _work(store)
    checks.append(transactions(await store.examine("transactions", _old_transaction_s), sees_all=server["sees_all"]))
    checks.append(notifications(server["queue_usage"]))
    return checks


async def _ask_server(store: Store) -> tuple[JobRow, float, float]:
    """The server's answer, the shortest round trip, and how far its clock is ahead of this machine's then."""
    await store.examine("server")  # makes the connection
    rounds = []
    for _ in range(_asks):
        before, began = time.time(), time.perf_counter()
        (server,) = await store.examine("server")
        took_s = time.perf_counter() - began
        rounds.append((took_s, server["now"].timestamp() - before - took_s / 2))
    latency_s, skew_s = min(rounds)
    return server, latency_s, skew_s


async def _checked(name: str, ask: Callable[[], Awaitable[Check]]) -> Check:
    """What `ask` finds; an error that is not an outage is a finding too."""
    try:
        return await ask()
    except StoreUnavailable:
        raise
    except SchemaOutdated as error:
        return Check(name, "fail", str(error))
    except StoreError as error:
        return Check(name, "fail", str(error), "Give the role of this address its rights, or correct the address.")


async def _tables(store: Store) -> Check:
    missing = await store.pending_migrations()
    if missing:
        return Check("tables", "fail", f"missing: {', '.join(missing)}", "Run 'agentrt migrate' with the same options.")
    return Check("tables", "ok", "up to date")


async def _listen(store: Store) -> Check:
    """A real round trip: LISTEN on one connection, NOTIFY on another."""
    token = str(uuid4())
    heard = asyncio.Event()
    notifier = await store.listen(lambda _channel, payload: heard.set() if payload == token else None)
    try:
        began = time.perf_counter()
        await store.examine("ring", token)
        try:
            async with asyncio.timeout(_bell_s):
                await heard.wait()
        except TimeoutError:
            text = f"a NOTIFY was not heard within {_bell_s:g} s, so jobs start only when a poll finds them"
            remedy = "A pooler in transaction mode drops LISTEN: give the address of PostgreSQL itself."
            return Check("listen", "fail", text, remedy)
        return Check("listen", "ok", f"a NOTIFY is heard after {duration(time.perf_counter() - began)}")
    finally:
        await notifier.close()


async def _work(store: Store) -> list[Check]:
    """What the tables say about supervisors and jobs."""
    try:
        known = await store.supervisors()
        counts = await store.counts()
        (about,) = await store.examine("jobs", _late_s)
    except StoreUnavailable:
        raise
    except StoreError as error:
        return [Check("jobs", "fail", str(error), "Give the role of this address its rights on the schema.")]
    (server,) = await store.examine("server")
    some_live = any(live(row) for row in known)
    return [
        supervisors(known),
        workers(counts, known),
        leases(about, some_live=some_live),
        due(about, some_live=some_live),
        dead_rows(about, autovacuum=server["autovacuum"]),
    ]


# ------------------------------------------------------------------ verdicts


def database(server: JobRow, latency_s: float) -> Check:
    text = f"PostgreSQL {server['version']}, {duration(latency_s)} a round trip"
    if server["version_num"] < _version_min:
        text += f"; agentrt needs {_version_min // 10_000} or newer"
        return Check("database", "fail", text, "Upgrade the server.")
    if server["standby"]:
        text += "; it is a standby and cannot be written"
        return Check("database", "fail", text, "Give the primary's address.")
    if server["isolation"] != "read committed":
        text += f"; default_transaction_isolation is {server['isolation']!r}, under which jobs with a key are refused"
        remedy = (
            "Set it to 'read committed' for this database or role (ALTER ROLE … SET default_transaction_isolation …)."
        )
        return Check("database", "fail", text, remedy)
    if latency_s > _slow_s:
        return Check("database", "warn", text, "Move nearer to the database: each step of a job costs a round trip.")
    return Check("database", "ok", text)


def clock(skew_s: float) -> Check:
    side = "ahead of" if skew_s > 0 else "behind"
    text = f"the database is {duration(abs(skew_s))} {side} this machine"
    if abs(skew_s) > _skew_s:
        remedy = "Synchronise both (NTP). Leases are safe, but --at and the ages that 'agentrt jobs' shows are off."
        return Check("clock", "warn", text, remedy)
    return Check("clock", "ok", text)


def supervisors(known: list[JobRow]) -> Check:
    running = [row for row in known if live(row)]
    gone = [f"{row['host']}:{row['pid']}" for row in known if not live(row)]
    text = f"{len(running)} running, {sum(row['slots'] for row in running)} slots"
    if gone:
        text += f"; ended without signing off in the last day: {_names(gone)}"
    if not running:
        return Check("supervisors", "warn", text, "Start one: 'agentrt run MODULE'.")
    return Check("supervisors", "ok", text)


def workers(counts: list[JobRow], known: list[JobRow]) -> Check:
    knows = {agent for row in known if live(row) for agent in row["agents"]}
    waiting: dict[str, int] = {}
    for row in counts:
        if row["agent"] not in knows and not State(row["state"]).final:
            waiting[row["agent"]] = waiting.get(row["agent"], 0) + row["count"]
    if waiting:
        names = _names([f"{agent} ({count:,})" for agent, count in sorted(waiting.items())])
        text = f"jobs wait for agents that no running supervisor knows: {names}"
        return Check("workers", "warn", text, "Run the modules that declare them, or cancel the jobs.")
    return Check("workers", "ok", "every agent with jobs has a worker")


def leases(about: JobRow, *, some_live: bool) -> Check:
    if not about["lost"]:
        return Check("leases", "ok", "no job is held by a dead process")
    text = f"{about['lost']:,} running jobs lost their lease, the first {duration(about['lost_since_s'])} ago"
    return _left_lying("leases", text, "takes them back", some_live=some_live)


def due(about: JobRow, *, some_live: bool) -> Check:
    if not about["due"]:
        return Check("due", "ok", "no delayed job is overdue")
    text = f"{about['due']:,} delayed jobs are overdue, the first for {duration(about['due_since_s'])}"
    return _left_lying("due", text, "makes them ready", some_live=some_live)


def _left_lying(name: str, text: str, does: str, *, some_live: bool) -> Check:
    """Work that a supervisor should have seen to: normal while none runs, a fault when one does."""
    if some_live:
        return Check(name, "fail", text, f"A running supervisor {does}: look for errors in its log, and restart it.")
    return Check(name, "warn", text, f"Start a supervisor, it {does}: 'agentrt run MODULE'.")


def dead_rows(about: JobRow, *, autovacuum: bool) -> Check:
    text = f"jobs has {about['dead']:,} dead and {about['live']:,} live rows"
    if not autovacuum:
        return Check(
            "vacuum", "warn", f"{text}; autovacuum is off", "Set autovacuum = on: without it claims slow down."
        )
    if about["dead"] > _dead_rows and about["vacuumed_s"] > _vacuum_s:
        text += f", last vacuumed {duration(about['vacuumed_s'])} ago"
        remedy = "Look for old transactions (below), then for autovacuum in the server's log."
        return Check("vacuum", "warn", text, remedy)
    return Check("vacuum", "ok", text)


def transactions(rows: list[JobRow], *, sees_all: bool) -> Check:
    partly = "" if sees_all else " (only this role's sessions are visible: grant it pg_read_all_stats)"
    if not rows:
        return Check("transactions", "ok", f"none is open for more than {duration(_old_transaction_s)}{partly}")
    named = [
        f"pid {row['pid']} of {row['role']} ({row['application'] or '?'}, {row['state']}) for {duration(row['open_s'])}"
        for row in rows
    ]
    remedy = f"They keep vacuum from clearing the jobs table. End them: select pg_terminate_backend({rows[0]['pid']});"
    return Check("transactions", "warn", f"open for long: {_names(named)}{partly}", remedy)


def notifications(share: float) -> Check:
    text = f"{share:.1%} of the notification queue is used"
    if share > _queue_share:
        return Check("notify queue", "warn", text, "A session that listens has a transaction open (see above). End it.")
    return Check("notify queue", "ok", text)


def _names(names: list[str]) -> str:
    more = len(names) - _names_max
    return ", ".join(names[:_names_max]) + (f" and {more} more" if more > 0 else "")
