"""`agentrt trace`, `show`, `why`, `cancel` and `retry --from` on jobs with steps, asks and budgets, from a real supervisor."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

import agentrt
from agentrt import Budget, Fail, Job, Retry, agent, spend, step
from agentrt.cli import main
from agentrt.client import Client
from agentrt.errors import JobFailed
from tests.cli.conftest import Cli
from tests.cli.test_jobs import colour, on_terminal
from tests.conftest import supervising
from tests.support import Sql, eventually

tried: list[str] = []


async def think(text: str) -> str:
    spend(usd=0.25, tokens=100)
    return text.upper()


async def shaky(text: str) -> str:
    tried.append(text)
    if len(tried) < 3:
        raise ValueError(f"try {len(tried)} of {text}")
    return text


async def broken(text: str) -> str:
    raise ValueError(f"no {text} here")


async def tell(text: str) -> str:
    tried.append(text)
    return text


@agent
async def critic(text: str) -> str:
    return await step(think, text, name="critique")


@agent(retry=Retry(max_attempts=1))
async def grumpy(text: str) -> str:
    raise Fail("no\nway")


@agent(budget=Budget(usd=5, jobs=10))
async def writer(text: str) -> str:
    draft = await step(think, text)
    await step(shaky, draft, retry=Retry(max_attempts=5, base_s=0.01))
    verdicts = await asyncio.gather(critic.ask(draft), grumpy.ask(draft), return_exceptions=True)
    return str(verdicts[0])


@agent
async def waiter(text: str) -> str:
    """Asks one that waits for a person."""
    return str(await patient["k"].ask(text))


@agent
async def patient(text: str) -> str:
    await step(think, text)
    return (await agentrt.decide(f"Publish {text}?", ["yes", "no"])).option


@agent
async def sleeper(seconds: float) -> None:
    await agentrt.sleep(seconds)


@agent
async def stubborn(text: str) -> None:
    await step(broken, text, retry=Retry(max_attempts=5, base_s=3600, jitter=0))


@agent(retry=Retry(max_attempts=1))
async def teller(text: str) -> None:
    await step(tell, f"{text} 1")
    await step(tell, f"{text} 2")
    await step(broken, text)


async def run_writer(client: Client, database: str) -> int:
    tried.clear()
    async with supervising(database, writer, critic, grumpy):
        job = await writer.send("otters")
        assert await job.result(timeout_s=30) == "OTTERS"
    return job.id


async def test_trace_shows_the_whole_tree_from_any_job_of_it(cli: Cli, client: Client, database: str, sql: Sql) -> None:
    root = await run_writer(client, database)
    below = {
        row["agent"]: row["id"] for row in await sql.rows("select id, agent from agentrt.history where root = $1", root)
    }
    value, drawn = await asyncio.gather(cli("trace", below["critic"], "--json"), cli("trace", below["grumpy"]))
    tree = value.value
    assert (tree["asked"], tree["root"], tree["cut"], tree["jobs"]) == (below["critic"], root, False, 3)
    assert (tree["usd"], tree["tokens"]) == (0.5, 200)
    (top,) = tree["tree"]
    assert (top["id"], top["state"], top["usd"], top["tokens"]) == (root, "succeeded", 0.25, 100)
    assert top["budget"] == {"usd": 0.5, "usd_max": 5.0, "tokens": 200, "tokens_max": None, "jobs": 3, "jobs_max": 10}
    assert 0 <= top["waited_s"] < 30
    assert 0 < top["ran_s"] < 30
    steps = {one["step"]: one for one in top["steps"]}
    assert steps["shaky#0"]["tries"] == 2
    assert {one["state"] for name, one in steps.items() if "grumpy" not in name} == {"done"}
    assert [one["state"] for name, one in steps.items() if "grumpy" in name] == ["failed"]
    children = {child["agent"]: child for child in top["children"]}
    assert children["critic"]["steps"][0]["step"] == "critique#0"
    assert (children["grumpy"]["state"], children["grumpy"]["reason"]) == ("failed", "fatal")
    lines = drawn.out.splitlines()
    assert lines[0].startswith(f"{root} writer  succeeded  waited ")
    assert lines[0].endswith("0.25 USD, 100 tokens, budget: 0.5 of 5 USD, 3 of 10 jobs")
    assert lines[1].startswith("│    steps think#0, shaky#0 (3 tries), ")
    drawn_critic, drawn_grumpy = f"─ {below['critic']} critic  succeeded", f"─ {below['grumpy']} grumpy  failed"
    first, last = (drawn_critic, drawn_grumpy) if below["critic"] < below["grumpy"] else (drawn_grumpy, drawn_critic)
    assert f"├{first}" in drawn.out  # asked at once, they are stored in any order
    assert f"└{last}" in drawn.out
    assert "       steps critique#0" in drawn.out
    assert "fatal: agentrt.errors.Fail: no way" in drawn.out
    assert lines[-1] == "3 jobs, spent: 0.5 USD, 200 tokens"


async def test_trace_shows_jobs_whose_parent_is_gone_and_any_depth(cli: Cli, sql: Sql) -> None:
    insert = "insert into agentrt.jobs(id, agent, parent, root) values ($1, 'a', $2, 1000)"
    await sql.run(insert, 2000, 1500)  # neither the parent nor the root is kept
    for job_id in range(2001, 2300):
        await sql.run(insert, job_id, job_id - 1)
    await sql.run(insert, 3000, 3001)  # what only plain SQL can make: each is the other's parent
    await sql.run(insert, 3001, 3000)
    drawn, value, gone = await asyncio.gather(
        cli("trace", "2150"), cli("trace", "2150", "--json"), cli("trace", "1000")
    )
    assert (drawn.code, value.code) == (0, 0)
    assert len(drawn.out.splitlines()) == 303
    assert [top["id"] for top in value.value["tree"]] == [2000, 3000]
    assert "There is no job 1000" in gone.refused(1)


async def test_a_tree_that_is_too_large_is_cut_and_says_so(
    database: str, sql: Sql, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("agentrt.cli.trace._jobs_max", 5)
    monkeypatch.setenv("AGENTRT_DATABASE_URL", database)
    root = await sql.value("insert into agentrt.jobs(agent) values ('a') returning id")
    await sql.run("insert into agentrt.jobs(agent, parent, root) select 'a', $1, $1 from generate_series(1, 9)", root)
    monkeypatch.setattr("sys.argv", ["agentrt", "trace", str(root)])
    await asyncio.to_thread(main)
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 6
    assert "the tree is cut: its oldest 5 jobs" in printed.err


async def test_a_terminal_gets_a_tree_of_its_width(cli: Cli, sql: Sql) -> None:
    root = await sql.value("insert into agentrt.jobs(agent) values ('a') returning id")
    await sql.run(
        "insert into agentrt.jobs(agent, parent, root, last_error) values ('b', $1, $1, $2)", root, "no " * 100
    )
    shown = await asyncio.to_thread(on_terminal, cli, 60, "trace", str(root), environ={"TERM": "xterm-256color"})
    lines = colour.sub("", shown).splitlines()
    assert len(lines) == 4
    assert all(len(line) <= 60 for line in lines)
    assert lines[2].rstrip().endswith("…")
    assert "\x1b[34mready" in shown


async def test_a_tree_is_found_by_its_root(sql: Sql) -> None:
    """However many other jobs there are, live and ended."""
    for table in ("jobs", "history"):
        await sql.run("set enable_seqscan = off")
        plan = await sql.rows(f"explain select id from agentrt.{table} where id = 17 or root = 17")
        assert "_root" in str(plan), plan


async def test_show_lists_steps_with_what_they_wait_for(cli: Cli, client: Client, database: str, sql: Sql) -> None:
    root = await run_writer(client, database)
    async with supervising(database, patient, warm_s=0.05):
        job = await patient.send("otters")
        await sql.until(job.id, "parked")
        done, value, parked = await asyncio.gather(cli("show", root), cli("show", root, "--json"), cli("show", job.id))
    lines = {line.split()[0]: line for line in done.out.splitlines() if "#" in line}
    assert "step  done" in " ".join(lines["shaky#0"].split()).replace(" step ", " step  ", 1)
    assert "test_trace.py:" in lines["think#0"]
    assert lines["think#0"].endswith('"OTTERS"')
    failed = next(line for name, line in lines.items() if "grumpy" in name)
    child = await sql.value("select id from agentrt.history where agent = 'grumpy'")
    assert f" {child} " in failed
    assert failed.endswith(f"job {child} failed: agentrt.errors.Fail: no way")
    assert "spent       0.25 USD, 100 tokens" in done.out
    assert (value.value["usd"], value.value["tokens"]) == (0.25, 100)
    steps = {one["step"]: one for one in value.value["steps"]}
    assert steps["think#0"]["output"] == "OTTERS"
    assert next(one for name, one in steps.items() if "grumpy" in name)["failure"]["state"] == "failed"
    question = await sql.value("select id from agentrt.decisions where job_id = $1", job.id)
    assert f"waits for a decision: question {question}, 'Publish otters?'" in parked.out


async def why(cli: Cli, job_id: int) -> str:
    line: str = (await cli("why", job_id, "--json")).value["why"]
    return line


async def test_why_says_what_parked_and_warm_jobs_wait_for(cli: Cli, client: Client, database: str, sql: Sql) -> None:
    async with supervising(database, waiter, patient, sleeper, stubborn, warm_s=3600, drain_s=0):
        asks = await waiter.send("otters")
        rows: list[Job[Any]] = [asks, await sleeper.send(7200.0), await stubborn.send("otters")]

        async def all_wait() -> bool:
            return bool(await sql.value("select count(*) = 4 from agentrt.steps where not done"))

        await eventually(all_wait)
        asked = await sql.value("select id from agentrt.jobs where parent = $1", asks.id)
        warm = await asyncio.gather(*(why(cli, one.id) for one in rows), why(cli, asked))
    async with supervising(database, waiter, patient, sleeper, stubborn, warm_s=0.05):
        for job_id in (*(one.id for one in rows), asked):
            await sql.until(job_id, "parked")
        cold = await asyncio.gather(*(why(cli, one.id) for one in rows), why(cli, asked))
    question = await sql.value("select id from agentrt.decisions where job_id = $1", asked)
    for lines, state in ((warm, "running"), (cold, "parked")):
        assert lines[0].startswith(f"waits for a reply of job {asked} (patient, {state})")
        assert re.match(r"sleeps, due in 1\d\d min", lines[1])
        assert lines[2].startswith("step broken#0 tries again in 60 min (after 1 try: ValueError: no otters here)")
        assert lines[3].startswith(f"waits for a decision: question {question}, 'Publish otters?'")
    assert all("; leased to " in line for line in warm)


@pytest.mark.parametrize("alone", [False, True])
async def test_cancel_ends_the_tree_or_the_job_alone(
    cli: Cli, client: Client, database: str, sql: Sql, alone: bool
) -> None:
    async with supervising(database, waiter, patient, warm_s=0.05):
        job = await waiter.send("otters")
        await sql.until(job.id, "parked")
        asked = await sql.value("select id from agentrt.jobs where parent = $1", job.id)
        await sql.until(asked, "parked")
        assert (await cli("cancel", job.id, *(["--alone"] if alone else []))).code == 0
        await sql.until(job.id, "cancelled")
        assert await sql.state(asked) == ("parked" if alone else "cancelled")


async def test_retry_from_a_step_runs_it_and_those_after_it_again(
    cli: Cli, client: Client, database: str, sql: Sql
) -> None:
    tried.clear()
    async with supervising(database, teller):
        job = await teller.send("x")
        with pytest.raises(JobFailed):
            await job.result(timeout_s=30)
        wrong, odd, two = await asyncio.gather(
            cli("retry", job.id, "--from", "tell#7"),
            cli("retry", job.id, "--from", "\udcff"),
            cli("retry", job.id, job.id, "--from", "tell#0"),
        )
        assert f"job {job.id} has no step 'tell#7'. Its steps: tell#0, tell#1, broken#0." in wrong.refused(1)
        assert "has no step" in odd.refused(1)
        assert "--from names a step of one job" in two.refused(2)
        assert await sql.state(job.id) == "failed"
        assert (await cli("retry", 10**9, "--from", "tell#0")).refused(1).count("There is no job") == 1
        assert (await cli("retry", job.id, "--from", "tell#1")).code == 0
        with pytest.raises(JobFailed):
            await job.result(timeout_s=30)
    assert tried == ["x 1", "x 2", "x 2"]


async def test_a_job_that_waits_for_its_retry_forgets_its_steps_too(cli: Cli, sql: Sql) -> None:
    job_id = await sql.value(
        "insert into agentrt.jobs(agent, run_after) values ('a', now() + interval '1 h') returning id"
    )
    await sql.run(
        "insert into agentrt.steps(job_id, step, fence) select $1, 's#' || n, 1 from generate_series(0, 3) n", job_id
    )
    assert (await cli("retry", job_id, "--from", "s#2")).code == 0
    assert await sql.state(job_id) == "ready"
    steps: list[dict[str, Any]] = await sql.rows(
        "select step from agentrt.steps where job_id = $1 order by seq", job_id
    )
    assert [row["step"] for row in steps] == ["s#0", "s#1"]
