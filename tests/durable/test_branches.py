"""Ids of steps: the path of the task, whatever ends in which order, on every loop."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvloop

import agentrt
from agentrt import agent, current, step
from agentrt.store.postgres import PostgresStore
from tests.conftest import supervising
from tests.durable.attempts import Driver, crash_at
from tests.support import Sql

Loop = Callable[[], asyncio.AbstractEventLoop]
quick = agentrt.Retry(max_attempts=3, base_s=0.01, factor=1)
names = ("ask_model", "search", "write")
eager_only = pytest.mark.skipif(sys.version_info < (3, 12), reason="eager task factories came with Python 3.12")


def _eager(new_loop: Loop) -> Loop:
    def factory(loop: asyncio.AbstractEventLoop, coro: Any, *, eager_start: bool = True, **options: Any) -> Any:
        """uvloop says `eager_start`, which asyncio's factory only knows since 3.13.3."""
        eager: dict[str, Any] = {"eager_start": eager_start is not False}  # of 3.12
        return asyncio.Task(coro, loop=loop, **eager, **options)

    def make() -> asyncio.AbstractEventLoop:
        loop = new_loop()
        loop.set_task_factory(factory)
        return loop

    return make


loops = pytest.mark.parametrize(
    "new_loop",
    [
        pytest.param(asyncio.new_event_loop, id="asyncio"),
        pytest.param(uvloop.new_event_loop, id="uvloop"),
        pytest.param(_eager(asyncio.new_event_loop), id="asyncio-eager", marks=eager_only),
        pytest.param(_eager(uvloop.new_event_loop), id="uvloop-eager", marks=eager_only),
    ],
)

# ---------------------------------------------------------------- agents of random shape


@dataclass
class Walk:
    """An agent that walks a tree of random shape. Each step says where in the tree it ran, and in which run of it."""

    seed: int
    runs: Counter[str] = field(default_factory=Counter)
    size: int = 0
    _serial: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self._shape = random.Random(self.seed)
        self._timing = random.Random()
        self._tree = self._grow(3)

    async def __call__(self) -> Any:
        return await self._walk(self._tree, "")

    def _grow(self, depth: int) -> tuple[str, Any]:
        kinds = ["step"] if depth == 0 else ["gather", "group", "tasks", "nested", "loop", "row", "wait_for", "step"]
        kind = self._shape.choice(kinds)
        if kind == "step":
            self.size += 1
            return kind, self._shape.choice(names)
        if kind in ("nested", "wait_for"):
            return kind, (self._shape.choice(names), self._grow(depth - 1))
        if kind == "loop":
            return kind, (self._shape.randint(2, 3), self._grow(depth - 1))
        return kind, [self._grow(depth - 1) for _ in range(self._shape.randint(2, 3))]

    async def _walk(self, node: tuple[str, Any], at: str) -> Any:
        await self._tarry()
        kind, of = node
        return await getattr(self, f"_{kind}")(of, f"{at}/{kind}")

    async def _tarry(self) -> None:
        """A random time, in which a library may start a task of its own."""
        if self._timing.random() < 0.2:
            await asyncio.create_task(asyncio.sleep(0))
        await asyncio.sleep(self._timing.choice((0, 0, 0.001, 0.003)))

    async def _step(self, name: str, at: str) -> Any:
        async def work() -> list[Any]:
            self.runs[at] += 1
            await self._tarry()
            return [at, next(self._serial)]

        return await step(work, name=name)

    async def _nested(self, of: Any, at: str) -> Any:
        name, inner = of

        async def work() -> list[Any]:
            self.runs[at] += 1
            return [at, next(self._serial), await self._walk(inner, at)]

        return await step(work, name=name)

    async def _wait_for(self, of: Any, at: str) -> Any:
        return await asyncio.wait_for(self._walk(of[1], at), 60)

    async def _loop(self, of: Any, at: str) -> Any:
        return [await self._walk(of[1], f"{at}[{turn}]") for turn in range(of[0])]

    async def _row(self, of: Any, at: str) -> Any:
        return [await self._walk(one, f"{at}[{place}]") for place, one in enumerate(of)]

    async def _gather(self, of: Any, at: str) -> Any:
        return await asyncio.gather(*(self._walk(one, f"{at}[{place}]") for place, one in enumerate(of)))

    async def _group(self, of: Any, at: str) -> Any:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._walk(one, f"{at}[{place}]")) for place, one in enumerate(of)]
        return [task.result() for task in tasks]

    async def _tasks(self, of: Any, at: str) -> Any:
        tasks = []
        for place, one in enumerate(of):
            tasks.append(asyncio.create_task(self._walk(one, f"{at}[{place}]")))
            await self._tarry()
        return [await task for task in reversed(tasks)]


def _places(value: Any) -> list[tuple[str, int]]:
    """(where, which run) of each step in a result."""
    if isinstance(value, list) and len(value) >= 2 and isinstance(value[0], str):
        return [(value[0], value[1]), *(found for more in value[2:] for found in _places(more))]
    return [found for one in value for found in _places(one)]


async def _crash_and_replay(database: str, seeds: range) -> int:
    walks = [Walk(seed) for seed in seeds]
    replays = 0
    async with Driver(PostgresStore(database), walks) as driver:
        kept: list[dict[str, str]] = [{} for _ in walks]
        for round_seed in (1, 2, None):
            crash = (lambda _index: None) if round_seed is None else crash_at(round_seed, 8)
            before = [Counter(walk.runs) for walk in walks]
            results = await driver.attempt(crash)
            replays += round_seed != 1 and len(walks)
            for walk, known, ran in zip(walks, kept, before, strict=True):
                for output in known.values():
                    place = json.loads(output)[0]
                    assert walk.runs[place] == ran[place], f"seed {walk.seed}: a recorded step ran again: {place}"
            kept = await driver.recorded()
        before = [Counter(walk.runs) for walk in walks]
        again = await driver.attempt()
        replays += len(walks)
    assert again == results
    assert [walk.runs for walk in walks] == before, "a step ran in a replay that had them all"
    for result, known in zip(results, kept, strict=True):
        whole = _places(result if isinstance(result, list) else [result])
        assert len(whole) == len(set(whole)) == len(known)
        assert {(at, run) for at, run in whole} == {tuple(json.loads(output)[:2]) for output in known.values()}
        assert len({at for at, _ in whole}) == len(whole), "two steps have one value"
    return replays


@loops
def test_branches_of_random_shape_replay_to_the_same_values_and_run_no_recorded_step_again(
    database: str, new_loop: Loop
) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        replays = runner.run(_crash_and_replay(database, range(170)))
    assert replays >= 500


# ---------------------------------------------------------------- the ids themselves


async def _ids_of(new_agent: Callable[[], Coroutine[Any, Any, Any]], database: str, times: int = 3) -> set[str]:
    """The ids that an agent's steps get, the same in each of several runs of it."""
    async with Driver(PostgresStore(database), [new_agent] * times) as driver:
        await driver.attempt()
        ids = [set(recorded) for recorded in await driver.recorded()]
    assert ids == ids[:1] * times
    return ids[0]


async def value(of: Any = None) -> Any:
    await asyncio.sleep(random.uniform(0, 0.003))
    return of


async def chain() -> None:
    for _ in range(2):
        await step(value)


async def nested() -> None:
    async def outer() -> None:
        await asyncio.gather(chain(), step(value))

    await step(outer)
    await step(value)


async def waits_for() -> None:
    await asyncio.wait_for(chain(), 5)
    await asyncio.gather(asyncio.wait_for(chain(), 5), asyncio.wait_for(step(value), 5))
    await asyncio.wait_for(asyncio.create_task(chain()), 5)
    await step(value)


async def escaped() -> None:
    await step(value, name="a/b%#1")
    await step(value, name="a/b%#1")


@loops
@pytest.mark.parametrize(
    ("new_agent", "ids"),
    [
        (
            nested,
            {"outer#0", "outer#0/chain#0/value#0", "outer#0/chain#0/value#1", "outer#0/step#0/value#0", "value#0"},
        ),
        (
            waits_for,
            {"value#0", "value#1", "value#2"}
            | {"wait_for#0/value#0", "wait_for#0/value#1", "wait_for#1/value#0", "chain#0/value#0", "chain#0/value#1"},
        ),
        (escaped, {"a%2Fb%25#1#0", "a%2Fb%25#1#1"}),
    ],
)
def test_an_id_is_the_path_of_tasks_the_name_and_a_number_on_every_version(
    database: str, new_loop: Loop, new_agent: Callable[[], Coroutine[Any, Any, Any]], ids: set[str]
) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(_ids_of(new_agent, database)) == ids


@loops
def test_tasks_that_a_library_makes_in_between_shift_nothing(database: str, new_loop: Loop) -> None:
    async def library() -> None:
        await asyncio.sleep(0)

    async def plain() -> None:
        await asyncio.gather(chain(), chain())
        await step(value)

    async def with_library() -> None:
        asyncio.get_running_loop().create_task(library())
        tasks = []
        for _ in range(2):
            tasks.append(asyncio.create_task(chain()))
            await asyncio.wait([asyncio.ensure_future(library())])
        await asyncio.gather(*tasks)
        await step(value)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(_ids_of(with_library, database)) == runner.run(_ids_of(plain, database))


# ---------------------------------------------------------------- under a supervisor


async def test_parallel_branches_get_their_values_back_in_a_retry_under_a_supervisor(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    ran: Counter[tuple[int, str, int]] = Counter()

    async def work() -> list[Any]:
        task = asyncio.current_task()
        assert task is not None
        await asyncio.sleep(random.uniform(0, 0.01))
        ran[current().job_id, task.get_name(), current().attempt] += 1
        return [task.get_name(), current().attempt]

    async def branch() -> list[Any]:
        return [await step(work) for _ in range(3)]

    @agent(retry=quick)
    async def braid() -> list[Any]:
        tasks = [asyncio.create_task(branch(), name=f"branch-{number}") for number in range(4)]
        if current().attempt == 1:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            raise RuntimeError("with some of it done")
        return list(await asyncio.gather(*tasks))

    async with supervising(database, braid):
        jobs = [await braid.send() for _ in range(20)]
        results = [await job.result(timeout_s=20) for job in jobs]
    for result in results:
        assert [[name for name, _ in branch] for branch in result] == [[f"branch-{number}"] * 3 for number in range(4)]
        attempts = [attempt for branch in result for _, attempt in branch]
        assert attempts.count(1) >= 3
    assert await sql.value("select count(*) from agentrt.steps where fence = 1") == sum(
        attempt == 1 for result in results for branch in result for _, attempt in branch
    )


async def test_a_task_factory_that_is_set_while_a_job_runs_is_refused_with_what_to_do(
    database: str, client: agentrt.Client
) -> None:
    @agent(retry=agentrt.Retry(max_attempts=1))
    async def meddler() -> None:
        loop = asyncio.get_running_loop()
        before = loop.get_task_factory()
        loop.set_task_factory(lambda loop, coro, **options: asyncio.Task(coro, loop=loop, **options))
        try:
            await asyncio.create_task(chain(), name="mine")
        finally:
            loop.set_task_factory(before)

    async with supervising(database, meddler):
        with pytest.raises(agentrt.JobFailed, match="UsageError: mine was made by a task factory that was set while"):
            await meddler.ask()


async def test_a_task_factory_that_was_set_before_the_supervisor_makes_the_tasks(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    class Own(asyncio.Task[Any]):
        pass

    @agent
    async def modest() -> list[str]:
        task = asyncio.create_task(chain())
        await task
        return [type(task).__name__]

    asyncio.get_running_loop().set_task_factory(lambda loop, coro, **options: Own(coro, loop=loop, **options))
    async with supervising(database, modest):
        assert await modest.ask() == ["Own"]
    ids = {row["step"] for row in await sql.rows("select step from agentrt.steps")}
    assert ids == {"chain#0/value#0", "chain#0/value#1"}
