"""The comparison with peers runs, at its smallest, for agentrt and the queue by hand; their results make tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from agentrt import Client
from agentrt.testing import supervising
from tests.bench.peers.__main__ import main
from tests.bench.peers.adapters import agentrt_agents
from tests.bench.peers.environments import NotMeasured, libraries
from tests.bench.peers.measures import Sizes, single
from tests.bench.peers.probe import Probe
from tests.bench.peers.results import Result, Values, read
from tests.bench.peers.role import load
from tests.bench.peers.run import Plan, run
from tests.bench.peers.table import columns, tables
from tests.bench.peers.together import together
from tests.support import Sql

smallest = Sizes(serial=5, spread=50, bulk=20, drain=60, drain_s=30, paced=8, paced_gap_s=0.01)


both = ["agentrt", "baseline"]


def plan(server: str, folder: Path, metrics: list[str]) -> Plan:
    return Plan(
        server, both, metrics, smallest, repeats=1, environments=folder, folder=folder, out=folder / "out.jsonl"
    )


@pytest.fixture
def quiet() -> Console:
    return Console(quiet=True)


async def test_every_job_runs_once_and_the_results_fill_the_tables(
    server: str, tmp_path: Path, quiet: Console, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = ["enqueue", "drain", "latency"]
    await run(plan(server, tmp_path, metrics), quiet)
    results = read(tmp_path / "out.jsonl")
    assert [result.not_measured for result in results if result.not_measured] == []
    for peer in both:
        seen = {(r.metric, r.case): r.numbers for r in results if r.peer == peer}
        assert {metric for metric, _ in seen} == set(metrics)
        drains = [numbers for (metric, _), numbers in seen.items() if metric == "drain"]
        assert [(d["jobs"].values, d["not_run"].values, d["ran_again"].values) for d in drains] == [
            ([60], [0], [0]) for _ in drains
        ]
        assert all(numbers["ran_again"].values == [0] for (m, _), numbers in seen.items() if m == "latency")
        assert 0 < seen["latency", "default"]["p50_ms"].median <= seen["latency", "default"]["p99_ms"].median
    for table in tables(results):
        *rows, ratios = table.rows
        assert ratios[0] == "agentrt ÷ best peer"
        assert all("–" not in cell.split(" ")[0] for row in rows for cell in row[1:-1]), rows
    assert main(["--table", str(tmp_path / "out.jsonl")]) == 0
    assert "| agentrt ÷ best peer |" in capsys.readouterr().out


async def test_the_rows_of_a_backlog_of_agentrt_are_as_its_tables_want_them(
    database: str, client: Client, sql: Sql, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = Probe(tmp_path / "probe", slots=1)
    monkeypatch.setenv(agentrt_agents.probe_variable, str(probe.path))
    monkeypatch.setenv(agentrt_agents.worker_variable, "0")
    agentrt_agents.probe.cache_clear()
    async with supervising(database, agentrt_agents.noop):
        await (await agentrt_agents.noop.send(0, 0)).result(timeout_s=30)
        await sql.run(load("agentrt").finished_sql(3))
        await sql.run(load("agentrt").pending_sql(2))
        await sql.until_none_unfinished()
    assert await sql.value("select count(*) from agentrt.all_jobs where state = 'succeeded'") == 1 + 3 + 2
    assert probe.hits() == 1 + 2


async def test_a_peer_that_cannot_be_installed_is_said_and_the_run_goes_on(
    server: str, tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_network(name: str, *_: object) -> tuple[Path, str]:
        raise NotMeasured(f"{name} is not to be had")

    monkeypatch.setattr("tests.bench.peers.run.prepare", no_network)
    await run(plan(server, tmp_path, ["enqueue"]), quiet)
    results = read(tmp_path / "out.jsonl")
    assert [(r.peer, r.not_measured) for r in results] == [(name, f"{name} is not to be had") for name in both]
    assert tables(results)[0].rows[0][-1] == "agentrt is not to be had"


def test_the_probe_counts_what_is_missing_and_what_ran_twice(tmp_path: Path) -> None:
    reader = Probe(tmp_path / "probe", slots=4)
    writer = Probe(tmp_path / "probe", worker=1)
    writer.start(0)
    writer.start(2)
    writer.start(2)
    writer.end(2)
    writer.end(2)
    assert (reader.started(), reader.ended(), reader.again(4), reader.hits()) == (2, 1, 1, 2)
    assert [reader.running_in(worker, 4) for worker in (0, 1)] == [0, 1]
    reader.reset()
    assert (reader.started(), reader.hits()) == (0, 0)


def test_spread_and_ratio_are_of_the_same_run() -> None:
    def enqueued(peer: str, *values: float) -> Result:
        return Result(peer, "1", "enqueue", "serial", {"jobs_per_s": Values(list(values))})

    (table,) = tables([enqueued("agentrt", 300, 100, 200), enqueued("one", 100), enqueued("other", 50, 700, 400)])
    assert [row[1] for row in table.rows] == ["200 (100–300)", "100", "400 (50–700)", "0.50 (other)"]


def test_every_metric_has_its_table_and_every_peer_its_adapter() -> None:
    assert set(columns) == {*single, *together}
    folder = Path(load.__code__.co_filename).parent / "adapters"
    assert set(libraries) == {path.stem for path in folder.glob("*.py")} - {"__init__", "agentrt_agents"}
