"""kill -9 at each durable boundary of an agent that uses every verb: another process ends it as if nothing had been."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import agentrt
from tests.conftest import execute, on_server
from tests.crash import every_verb
from tests.support import Sql, eventually

side_by_side = 4
within_s = 60.0
forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload(["tests.crash.every_verb"])


class Run:
    """One job, whose first process dies at a boundary, and whose second ends it."""

    def __init__(self, dsn: str, folder: Path, number: int, before: bool) -> None:
        self._dsn = dsn
        self._number = number
        self._before = before
        self.ledger = folder / f"{number}-{before}.txt"
        self.ledger.touch()
        self.deaths = 0
        self.result: dict[str, Any] = {}
        self.rows: dict[str, Any] = {}

    def _start(self, number: int) -> Any:
        process = forks.Process(target=every_verb.supervise, args=(self._dsn, self.ledger, number, self._before))
        process.start()
        return process

    async def go(self) -> None:
        connection = await asyncpg.connect(self._dsn)
        sql = Sql(connection)
        await sql.run("create table public.effects(value int)")
        process = self._start(self._number)
        try:
            async with agentrt.connect(self._dsn) as client:
                job = await every_verb.everything.options(client=client).send()

                async def ended() -> bool:
                    nonlocal process
                    if not process.is_alive():
                        assert process.exitcode == -9, f"it ended with {process.exitcode}"
                        self.deaths += 1
                        for supervisor in await sql.rows("select distinct supervisor as id from agentrt.jobs"):
                            if supervisor["id"] is not None:  # as its minder would: no need to wait for its leases
                                await client.store.sweep(100, supervisor["id"])
                        process = self._start(0)
                    for question in await client.store.decisions():
                        await client.decide(question["id"], "yes", by="ann")
                    return bool(await sql.value("select count(*) = 0 from agentrt.jobs"))  # nor any sent along the way

                await eventually(ended, within_s=within_s, what=f"the end, after a death at boundary {self._number}")
                self.result = await job.result()
            steps = "select kind, step, output::text from agentrt.steps order by kind, step"
            self.rows = {
                "steps": [tuple(row.values()) for row in await sql.rows(steps)],
                "sent": await sql.rows("select agent, count(*) from agentrt.history group by agent order by agent"),
                "effects": [row["value"] for row in await sql.rows("select value from public.effects order by value")],
                "waits": await sql.value("select count(*) from agentrt.steps where not done and kind <> 'sleep'"),
                "state": await sql.value("select value::text from agentrt.states"),
            }
        finally:
            process.kill()
            process.join()
            await connection.close()

    def effects(self) -> Counter[str]:
        """How often each effect outside of the database happened."""
        return Counter(line for line in self.ledger.read_text().splitlines() if line.startswith("effect "))


@pytest.fixture
def run(server: str, migrated: str, tmp_path: Path) -> Any:
    gate = asyncio.Semaphore(side_by_side)

    async def go(number: int, before: bool) -> Run:
        name = f"agentrt_test_{uuid.uuid4().hex[:12]}"
        async with gate:
            await execute(server, f'create database "{name}" template "{migrated}"')
            try:
                one = Run(on_server(server, name), tmp_path, number, before)
                await one.go()
            finally:
                await execute(server, f'drop database "{name}" with (force)')
        return one

    return go


def _shape(value: Any) -> str:
    """A result without the values that are drawn anew in each run."""
    return json.dumps(value, sort_keys=True) if not isinstance(value, str) else "drawn" if len(value) == 32 else value


def _same(one: Run, other: Run) -> None:
    assert {key: _shape(value) for key, value in one.result.items() if key != "branches"} == {
        key: _shape(value) for key, value in other.result.items() if key != "branches"
    }
    assert [(kind, step) for kind, step, _ in one.rows["steps"]] == [
        (kind, step) for kind, step, _ in other.rows["steps"]
    ]
    for what in ("sent", "effects", "waits", "state"):
        assert one.rows[what] == other.rows[what], what


@pytest.mark.timeout(600)
async def test_a_death_at_any_durable_boundary_changes_no_result_and_doubles_nothing(run: Any) -> None:
    whole = await run(0, True)
    assert whole.deaths == 0
    assert whole.rows["effects"] == [1, 2]
    assert whole.rows["waits"] == 0
    assert whole.effects() == {**dict.fromkeys(whole.effects(), 1), "effect tries": 3}
    boundaries = whole.ledger.read_text().count("boundary ")
    assert boundaries > 30

    places = [(number, before) for number in range(1, boundaries + 1) for before in (True, False)]
    died = await asyncio.gather(*(run(number, before) for number, before in places))

    for (number, before), one in zip(places, died, strict=True):
        place = f"{'before' if before else 'after'} boundary {number}"
        assert one.deaths <= 1, place
        _same(whole, one)
        outputs = {output.strip('"') for kind, _, output in one.rows["steps"] if kind == "step" and output}
        drawn = [one.result[name] for name in ("first", "thread", "retried", "reserved", "last")]
        assert {*drawn, *(value for pair in one.result["branches"] for value in pair)} <= outputs, place
        for effect, count in one.effects().items():  # the one that was under way when the process died may run again
            assert count <= whole.effects()[effect] + one.deaths, f"{effect}, {place}"
    assert sum(one.deaths for one in died) >= len(places) - 10  # the order of side-by-side boundaries may differ
