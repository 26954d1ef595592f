"""The chaos run: supervisors are killed with SIGKILL at random moments while jobs run; then the checker reads the history.

    python -m tests.crash.chaos --rounds 200 --jobs 20 [--seed N] [--database URL]

Each round sends jobs, kills one of the supervisors at a random moment, puts another in its place, and waits until its jobs
are done. Several rounds overlap, so that a kill hits the jobs of others, too. One more kill is aimed: it takes the
supervisor of a job that only a kill can end, so that every run has cost an attempt at least. Exit code 1: a promise was
broken; the violations are shown, and the database schema and the logs are kept. The seed repeats the jobs and the choices,
not the timing.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

import agentrt
from agentrt.agent import Message
from tests.crash import agents
from tests.crash.checker import Evidence, SentJob, check
from tests.support import Program, eventually

lease_s = 2.0
fleet_size = 3
overlap = 3
kill_within_s = 0.04  # after the end of one of its jobs, drawn for each round: about as long as a job takes
stuck_s = 90.0  # far beyond what a lease and a retry take: who waits so long waits for a wake-up that was lost
shown_max = 50
keys_a_round = 2
keyless = (agents.plain, agents.failing_once, agents.stepping, agents.asking, agents.doomed)
weights = (3, 3, 4, 2, 1)
never_logged = ("claim.found_by_poll", "loop.died", "heart.died", "supervisor.failed", "Traceback")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does. `dsn`: an address that asyncpg connects to; the run makes and drops a schema of its own."""

    rounds: int
    jobs: int
    seed: int
    dsn: str
    folder: Path
    schema: str


@dataclass(slots=True)
class Outcome:
    """What came of a run."""

    violations: list[str]
    kills: int
    jobs: int
    crashed: int  # attempts that a kill cost
    seconds: float


class Fleet:
    """The supervisors; one that is killed is replaced."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._alive: list[Program] = []
        self._all: list[Program] = []
        self.kills = 0

    def start(self) -> None:
        module = str(Path(agents.__file__))
        options = ["--schema", self._plan.schema, "--lease", str(lease_s), "--poll", "600", "--slots", "10"]
        environ = {"AGENTRT_DATABASE_URL": self._plan.dsn}
        program = Program(["run", module, *options], self._plan.folder, environ, f"supervisor-{len(self._all)}")
        self._alive.append(program)
        self._all.append(program)

    def kill(self, which: float) -> None:
        """Kill one, the older the likelier (the youngest still start and hold nothing), and start another."""
        self._kill(self._alive[int(which**2 * len(self._alive))])

    def kill_pid(self, pid: int) -> None:
        """Kill this one, and start another."""
        self._kill(next(program for program in self._alive if program.pid == pid))

    def _kill(self, victim: Program) -> None:
        self._alive.remove(victim)
        ended = victim.process.poll()
        victim.kill()
        self.kills += 1
        if ended is not None:
            raise ChaosError(f"a supervisor ended by itself with {ended}:\n{victim.log()[-3000:]}")
        self.start()

    async def stop(self) -> list[str]:
        """Drain those that live; returns the complaints of all."""
        for program in self._alive:
            await program.until("supervisor.started")  # before, it has no handler and dies of the signal
        codes = [await program.stop() for program in self._alive]
        found = [f"a drained supervisor ended with {code}" for code in codes if code]
        for program in self._all:
            found += [line for line in program.log().splitlines() if any(word in line for word in never_logged)]
        return found

    def notes(self) -> list[dict[str, Any]]:
        """The ledger of all."""
        return self._all[-1].notes()

    async def noted(self, kind: str, job_id: int) -> dict[str, Any]:
        """Wait for a note of this kind about the job, by whichever supervisor."""
        (note,) = await self._all[-1].noted(kind, job=job_id)
        return note

    def end(self) -> None:
        for program in self._all:
            program.kill()


class ChaosError(Exception):
    """The run cannot go on."""


# ------------------------------------------------------------------ one round


def messages_of(dice: random.Random, count: int) -> list[Message[Any]]:
    """A third of a round's jobs in mailboxes of its own, the rest mixed."""
    keys = [f"k{dice.getrandbits(48):x}" for _ in range(keys_a_round)]
    in_mailboxes = [agents.keyed[keys[n % keys_a_round]].message(n) for n in range(count // 3)]
    others = dice.choices(keyless, weights, k=count - len(in_mailboxes))
    return in_mailboxes + [agent.message(dice.getrandbits(20)) for agent in others]


async def send(messages: list[Message[Any]]) -> tuple[list[agentrt.Job[Any]], list[SentJob]]:
    """Keyed messages one by one, so that their order is the order of their commits; the rest in one go."""
    keyed = [message for message in messages if message.job.key is not None]
    plain = [message for message in messages if message.job.key is None]
    jobs = [(await agentrt.send_many([message]))[0] for message in keyed]
    jobs += await agentrt.send_many(plain)
    numbers = [agents.plain.decode_arguments(message.job.payload.decode())["n"] for message in keyed + plain]
    sent = [
        SentJob(job.id, message.job.agent, message.job.key, n)
        for job, message, n in zip(jobs, keyed + plain, numbers, strict=True)
    ]
    return jobs, sent


async def has_ended(job: agentrt.Job[Any]) -> bool:
    """Wait for a job's end, whichever that is; False: it did not come."""
    try:
        await job.result(timeout_s=stuck_s)
    except agentrt.ReplyTimeout:
        return False
    except agentrt.JobError:
        pass
    return True


async def play_round(plan: Plan, fleet: Fleet, number: int) -> list[SentJob]:
    """One round; returns what it sent. Raises `ChaosError` for jobs that do not end."""
    dice = random.Random(f"{plan.seed}/{number}")
    jobs, sent = await send(messages_of(dice, plan.jobs))
    waits = {asyncio.ensure_future(has_ended(job)): job.id for job in dice.sample(jobs, len(jobs))}
    try:
        # Not by the clock: a fast machine has done all before a slow one begins.
        ended_first = dice.randrange(len(jobs))
        while sum(wait.done() for wait in waits) < ended_first:
            await asyncio.wait([wait for wait in waits if not wait.done()], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(dice.uniform(0, kill_within_s))
        fleet.kill(dice.random())
        stuck = [job_id for wait, job_id in waits.items() if not await wait]
    finally:
        for wait in waits:
            wait.cancel()
    if stuck:
        raise ChaosError(f"jobs {stuck} did not end within {stuck_s:g} s")
    return sent


async def play_aimed_kill(fleet: Fleet) -> list[SentJob]:
    """Kill whoever runs a job whose first attempt has no other end; returns what was sent."""
    (job,), sent = await send([agents.held.message(0)])
    fleet.kill_pid((await fleet.noted("start", job.id))["pid"])
    if not await has_ended(job):
        raise ChaosError(f"job {job.id} did not end within {stuck_s:g} s after its first process was killed")
    return sent


# ------------------------------------------------------------------ the run


async def run(plan: Plan, say: Callable[[str], None]) -> Outcome:
    """Play all rounds, then check. Every process that was started has ended when this returns or raises."""
    began = time.monotonic()
    fleet = Fleet(plan)
    sent: list[SentJob] = []
    numbers = iter(range(plan.rounds))
    done = 0

    async def play_some() -> None:
        nonlocal done
        for number in numbers:
            sent.extend(await play_round(plan, fleet, number))
            done += 1
            say(f"round {done}/{plan.rounds}, {fleet.kills} kills, {len(sent)} jobs, {time.monotonic() - began:.0f} s")

    broken: list[str] = []
    complaints: list[str] = []
    async with agentrt.connect(plan.dsn, schema=plan.schema):
        try:
            for _ in range(fleet_size):
                fleet.start()
            async with asyncio.TaskGroup() as group:
                for _ in range(overlap):
                    group.create_task(play_some())
            sent += await play_aimed_kill(fleet)
            await until_empty(plan)
            complaints = await fleet.stop()
        except* (ChaosError, AssertionError) as failed:
            broken = [str(error) for error in failed.exceptions]
        finally:
            fleet.end()
    evidence = await gather_evidence(plan, fleet, sent, complaints)
    violations = (
        [*broken, *(f"unfinished: {row}" for row in evidence.unfinished[:shown_max])] if broken else check(evidence)
    )
    crashed = sum(row["reason"] == "crashed" for row in evidence.attempts)
    return Outcome(violations, fleet.kills, len(evidence.history), crashed, time.monotonic() - began)


async def until_empty(plan: Plan) -> None:
    """Children may end after those that sent them."""
    connection = await asyncpg.connect(plan.dsn)
    try:

        async def empty() -> bool:
            return not await connection.fetchval(f'select count(*) from "{plan.schema}".jobs')

        await eventually(empty, within_s=stuck_s, what="no unfinished job")
    finally:
        await connection.close()


async def gather_evidence(plan: Plan, fleet: Fleet, sent: list[SentJob], complaints: list[str]) -> Evidence:
    """Read the tables and the ledger."""
    connection = await asyncpg.connect(plan.dsn)
    try:

        async def rows(table: str) -> list[dict[str, Any]]:
            return [dict(row) for row in await connection.fetch(f'select * from "{plan.schema}".{table}')]

        return Evidence(
            sent=sent,
            history=await rows("history"),
            attempts=await rows("attempts"),
            steps=await rows("steps"),
            unfinished=await rows("jobs"),
            notes=fleet.notes(),
            complaints=complaints,
        )
    finally:
        await connection.close()


# ------------------------------------------------------------------ the command


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Progress:
    """A line that is written over where that can be seen, else one every tenth round."""

    def __init__(self) -> None:
        self._said = 0

    def __call__(self, text: str) -> None:
        self._said += 1
        if sys.stdout.isatty():
            sys.stdout.write(f"\r{text}\033[K")
            sys.stdout.flush()
        elif self._said % 10 == 0:
            say(text)


def random_seed() -> int:
    return random.SystemRandom().getrandbits(32)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.crash.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=20, help="jobs a round")
    parser.add_argument("--seed", type=int, help="of the jobs and the choices; a random one when not given")
    parser.add_argument("--database", help="postgresql://…; a server of its own when not given")
    given = parser.parse_args(arguments)
    seed = given.seed if given.seed is not None else random_seed()
    folder = Path(tempfile.mkdtemp(prefix="agentrt-chaos-"))
    say(f"seed {seed}: {given.rounds} rounds of {given.jobs} jobs, logs in {folder}")
    with database(given.database, folder) as dsn:
        plan = Plan(given.rounds, given.jobs, seed, dsn, folder, f"chaos_{uuid.uuid4().hex[:12]}")
        outcome = asyncio.run(run(plan, Progress()))
        if not outcome.violations:
            asyncio.run(drop_schema(plan))
    return conclude(plan, outcome)


@contextmanager
def database(given: str | None, folder: Path) -> Iterator[str]:
    """The address that was given, or that of a server in the run's folder."""
    if given is not None:
        yield given
        return
    from agentrt.store.embedded import open_embedded  # needs an extra

    server = open_embedded(folder / "postgres")
    try:
        yield server.dsn
    finally:
        server.close()


async def drop_schema(plan: Plan) -> None:
    connection = await asyncpg.connect(plan.dsn)
    try:
        await connection.execute("set client_min_messages = warning")
        await connection.execute(f'drop schema "{plan.schema}" cascade')
    finally:
        await connection.close()


def conclude(plan: Plan, outcome: Outcome) -> int:
    """Say what came of the run; returns the exit code."""
    summary = (
        f"{outcome.jobs} jobs, {outcome.kills} kills that cost {outcome.crashed} attempts, {outcome.seconds:.0f} s"
    )
    if not outcome.violations:
        shutil.rmtree(plan.folder, ignore_errors=True)
        say(f"\nevery promise held: {summary}")
        return 0
    say(f"\n{len(outcome.violations)} violations; {summary}")
    for violation in outcome.violations[:shown_max]:
        say(f"  {violation}")
    say(f"kept: {plan.folder}, schema {plan.schema}; the same jobs and choices again: --seed {plan.seed}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
