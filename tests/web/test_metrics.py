"""The metrics: they count what happened, and asking for them costs the database next to nothing."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import Counter as PrometheusCounter
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

import agentrt
from agentrt import Fail, Retry, agent
from agentrt.model import JobRow
from agentrt.store.postgres import PostgresStore
from agentrt.web import looks
from tests.support import Sql, eventually
from tests.web.conftest import Door, Open, door_of

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def series(text: str) -> Series:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found: Series, name: str, **labels: str) -> float | None:
    return found.get((name, frozenset(labels.items())))


@agent(retry=Retry(max_attempts=2, base_s=0.05))
async def worker(how: str) -> str:
    if how == "fails":
        raise Fail("as it should")
    if how == "breaks" and agentrt.current().attempt == 1:
        raise RuntimeError("once")
    return how


async def metrics_of(door: Door) -> Series:
    status, text, headers = await door.ask("metrics")
    assert status == 200
    assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return series(text)


async def test_the_metrics_count_what_happened(opened: Open, client: agentrt.Client, sql: Sql) -> None:
    for _ in range(3):
        await agentrt.to("nobody").send()
    await agentrt.to('no"bo\\dy\n').options(delay_s=3600).send()
    async with opened(worker, slots=7) as door:
        for how in ("works", "works", "fails", "breaks"):
            await worker.send(how)

        async def all_ended() -> bool:
            ended = await sql.value("select count(*) from agentrt.history")
            return bool(ended == 4 and door.supervisor.running_jobs == 0 and door.supervisor.health()["ok"])

        await eventually(all_ended)
        found = await metrics_of(door)
        ended = [
            value(found, "agentrt_outcomes_total", outcome=how) for how in ("succeeded", "failed", "retried", "lost")
        ]
        assert ended == [3, 1, 1, 0]
        claimed = [
            value(found, "agentrt_claimed_jobs_total", cause=cause) for cause in ("poll", "notify", "timer", "more")
        ]
        assert claimed[0] == 0
        assert sum(count or 0 for count in claimed) == 5
        assert value(found, "agentrt_claims_total", cause="notify") == door.supervisor.stats.claims["notify"]
        assert value(found, "agentrt_unfinished_jobs", agent="nobody", state="ready") == 3
        assert value(found, "agentrt_unfinished_jobs", agent='no"bo\\dy\n', state="scheduled") == 1
        assert value(found, "agentrt_unfinished_jobs", agent="worker", state="succeeded") is None
        assert [value(found, f"agentrt_{name}") for name in ("slots", "running_jobs", "ready")] == [7, 0, 1]
        assert [value(found, f"agentrt_{name}_total") for name in ("swept_jobs", "loop_stalls")] == [0, 0]


async def test_restarts_stalls_and_sweeps_show(opened: Open) -> None:
    async with opened(worker) as door:
        door.supervisor.stats.restarts["claimer"] += 2
        door.supervisor.stats.stalls += 3
        door.supervisor.stats.swept += 4
        found = await metrics_of(door)
    assert value(found, "agentrt_loop_restarts_total", loop="claimer") == 2
    assert value(found, "agentrt_loop_stalls_total") == 3
    assert value(found, "agentrt_swept_jobs_total") == 4


async def test_a_scraper_that_prefers_openmetrics_gets_it(opened: Open) -> None:
    async with opened(worker) as door:
        _, text, headers = await door.ask("metrics", Accept="application/openmetrics-text;version=1.0.0")
    assert headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert "agentrt_claims" in [family.name for family in openmetrics_families(text)]  # type: ignore[no-untyped-call]


async def test_metrics_of_the_agents_own_stay_out(opened: Open) -> None:
    PrometheusCounter("metric_of_an_agent", "In the registry of the process.").inc()
    async with opened(worker) as door:
        assert "metric_of_an_agent" not in (await door.ask("metrics"))[1]


class Watched(PostgresStore):
    """Counts how often its twins are asked for the counts."""

    asked = 0

    def twin(self, timeout_s: float) -> PostgresStore:
        return WatchedTwin(self)


class WatchedTwin(PostgresStore):
    def __init__(self, origin: Watched) -> None:
        super().__init__(origin.dsn)
        self._origin = origin

    async def counts(self) -> list[JobRow]:
        self._origin.asked += 1
        return await super().counts()


async def test_however_many_ask_the_database_is_asked_once(
    opened: Open, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks, "counts_kept_s", 600.0)
    store = Watched(database)
    async with opened(worker) as door, door_of(door.supervisor, store) as watched:
        answers = await asyncio.gather(*(watched.ask(path) for path in ["metrics", "state.json"] * 40))
        assert {status for status, _, _ in answers} == {200}
        assert store.asked == 1
    await store.close()


async def connections(sql: Sql) -> int:
    count: int = await sql.value(
        "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        " and backend_type = 'client backend'"  # autovacuum comes and goes
    )
    return count


async def test_a_door_that_nobody_asks_holds_no_connection(
    opened: Open, database: str, sql: Sql, client: agentrt.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks, "idle_s", 0.2)
    store = PostgresStore(database)
    async with opened(worker) as door:
        assert await worker.ask("works") == "works"
        before = await connections(sql)
        async with door_of(door.supervisor, store) as other:
            assert await connections(sql) == before
            await other.ask("metrics")

            async def given_back() -> bool:
                return await connections(sql) <= before

            await eventually(given_back)
            assert "agentrt_unfinished_jobs" in (await other.ask("metrics"))[1]


async def test_a_database_that_does_not_answer_holds_up_the_looks_only(
    opened: Open, sql: Sql, client: agentrt.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks, "look_s_max", 0.3)
    async with opened(worker) as door:
        assert await worker.ask("works") == "works"
        async with sql.connection.transaction():
            await sql.run("lock table agentrt.history in access exclusive mode")
            looking = [asyncio.ensure_future(door.ask(path)) for path in ("metrics", "state.json", "metrics")]
            assert (await door.ask("healthz"))[0] == 200
            (_, metrics, _), (_, state, _), _ = await asyncio.gather(*looking)
            assert "agentrt_slots" in metrics
            assert "agentrt_unfinished_jobs{" not in metrics
            assert "did not answer within 0.3 s" in state

            async def given_up() -> bool:
                waiting = await sql.value(
                    "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%agentrt.history%'"
                )
                return bool(waiting == 0)

            await eventually(given_up)
        assert await worker.ask("works") == "works"
