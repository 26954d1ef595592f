"""`agentrt check`: unfinished jobs against other code, dry."""

from __future__ import annotations

import shlex
from typing import Any

from tests.cli.conftest import Cli
from tests.conftest import Start
from tests.support import Sql

head = """
import asyncio, os
import agentrt
from agentrt import agent, step, to

def note(what):
    with open("notes", "a") as notes:
        notes.write(what + "\\n")

async def fetch(text: str) -> str:
    note("fetch")
    return text.upper()

async def store(text: str) -> str:
    note("store")
    return text
"""
recorded = """
@agent
async def writer(text: str) -> str:
    print("not the answer")
    page = await step(fetch, text)
    await to("nobody").send(text=page)
    async with agentrt.reserve(usd=1):
        parts = await asyncio.gather(*(branch(page, n) for n in range(3)))
    answer = await agentrt.decide("Publish?", ["yes", "no"])
    await step(store, page)
    await to("nobody").send(text=answer.option)
    return page

async def branch(page: str, n: int) -> str:
    return await step(fetch, f"{page} {n}")

@agent
async def idle(text: str) -> None:
    pass
"""


async def park(cli: Cli, start: Start, sql: Sql, source: str = recorded, agent: str = "writer") -> int:
    """A job that has recorded what this code does, up to its first wait."""
    program = start("run", "agents.py", "--warm", "0.05", source=head + source)
    sent = await cli("send", agent, "text=otters")
    job_id = int(sent.out)
    await sql.until(job_id, "parked")
    await program.stop()
    return job_id


async def checked(cli: Cli, source: str | None, *options: str, code: int = 0) -> dict[str, Any]:
    """What check says of the code; it must have changed nothing and run no step."""
    module = cli.folder / "later.py"
    if source is not None:
        module.write_text(head + source)
    before = await everything(cli)
    done = await cli("check", "later.py" if source is not None else "agents.py", "--json", *options)
    assert done.code == code, done
    assert await everything(cli) == before
    value: dict[str, Any] = done.value
    return value


async def everything(cli: Cli) -> list[object]:
    import asyncpg

    connection = await asyncpg.connect(cli.environ["AGENTRT_DATABASE_URL"])
    tables = ("jobs", "steps", "decisions", "history", "attempts", "budgets")
    rows = [await connection.fetch(f"select * from agentrt.{table} t order by t::text") for table in tables]
    await connection.close()
    return [*map(str, rows), (cli.folder / "notes").read_text()]


async def test_code_that_is_as_it_was_replays_up_to_the_first_wait(cli: Cli, start: Start, sql: Sql) -> None:
    job_id = await park(cli, start, sql)
    await cli("send", "idle", "text=x")  # has no recorded step
    await cli("send", "stranger", "text=x")
    value = await checked(cli, None)
    assert (value["ok"], value["checked"], value["cut"]) == (True, 1, False)
    (job,) = value["jobs"]
    assert (job["id"], job["agent"], job["verdict"], job["step"], job["unseen"]) == (
        job_id,
        "writer",
        "waits",
        "decide#0",
        [],
    )
    done = await cli("check", "agents.py")
    assert done.out == "1 unfinished job with recorded steps: 0 would diverge.\n"
    assert "not the answer" in done.err


changes = [  # of the code; the step that differs, what is said of it on both sides
    ("(fetch, text)", "(fetch, text + '!')", "fetch#0", "recorded as a step at agents.py:", "now a step at later.py:"),
    ('f"{page} {n}"', 'f"{page}-{n}"', "branch#0/fetch#0", "recorded as a step", "('OTTERS-0',)"),
    ('send(text=page)', 'send(text="other")', "send:nobody#0", "recorded as a send", "now a send at later.py:"),
    ('decide("Publish?"', 'decide("Really?"', "decide#0", "recorded as a decide", "'Really?'"),
    ('agentrt.decide("Publish?",', 'step(fetch, "x", name="decide") and (', "decide#0", "as a decide", "now a step"),
]  # fmt: skip


async def test_code_that_calls_something_else_diverges_with_both_sides_and_places(
    cli: Cli, start: Start, sql: Sql
) -> None:
    job_id = await park(cli, start, sql)
    for old, new, step, was, now in changes:
        assert old in recorded
        value = await checked(cli, recorded.replace(old, new), code=1)
        (job,) = value["jobs"]
        assert (value["ok"], job["id"], job["verdict"], job["step"]) == (False, job_id, "diverged", step)
        assert was in job["recorded"]
        assert now in job["found"]
        done = await cli("check", "later.py")
        assert done.code == 1
        assert f"job {job_id} (writer), step {step}\n  recorded as a " in done.out
        assert done.out.endswith("1 unfinished job with recorded steps: 1 would diverge.\n")


async def test_what_is_no_divergence_is_told_all_the_same(cli: Cli, start: Start, sql: Sql) -> None:
    await park(cli, start, sql)
    verdicts = {
        'step(fetch, text)': ('step(fetch, text, name="load")', "fresh", "load#0"),
        "page = await": ("return 'early'\n    page = await", "finishes", None),
        "parts = await": ("raise ValueError('oops')\n        parts = await", "raises", None),
        "text: str) -> str:\n    print": ("words: str, text: str) -> str:\n    print", "raises", None),
        "await to": ("await asyncio.Event().wait()\n    await to", "unclear", None),
    }  # fmt: skip
    seen = []
    for old, (new, verdict, step) in verdicts.items():
        (job,) = (await checked(cli, recorded.replace(old, new, 1)))["jobs"]
        assert (job["verdict"], job["step"]) == (verdict, step)
        seen.append(job)
    assert "fetch#0" in seen[0]["unseen"]
    assert "ValueError: oops" in seen[2]["text"]
    assert "PayloadInvalid: writer.words" in seen[3]["text"]
    (cli.folder / "later.py").write_text(head + recorded.replace("page = await", "return 'early'\n    page = await", 1))
    done = await cli("check", "later.py")
    assert done.code == 0
    assert "it has not come to the recorded " in done.out
    assert done.out.endswith("0 would diverge, 1 with a remark.\n")


async def test_the_way_goes_on_behind_an_answer_and_stops_at_what_is_new(cli: Cli, start: Start, sql: Sql) -> None:
    job_id = await park(cli, start, sql)
    await cli("decide", job_id, "yes")
    (job,) = (await checked(cli, None))["jobs"]
    assert (job["verdict"], job["step"]) == ("fresh", "store#0")
    assert job["text"].startswith("agents.py:")


side_by_side = """
async def short(text: str) -> str:
    return await step(fetch, text)

async def long(text: str) -> str:
    await step(fetch, text)
    await asyncio.sleep(0.01)
    return await step(store, text)

@agent
async def both(text: str) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(waits())
        group.create_task(long(text))
        group.create_task(short(text))

async def waits() -> None:
    await agentrt.sleep(3600)
"""


async def test_a_branch_that_waits_hides_no_divergence_of_another(cli: Cli, start: Start, sql: Sql) -> None:
    await park(cli, start, sql, side_by_side, "both")
    (job,) = (await checked(cli, None))["jobs"]
    assert (job["verdict"], job["step"], job["unseen"]) == ("waits", "waits#0/sleep#0", [])
    changed = side_by_side.replace("return await step(store, text)", "return await step(store, text + '!')")
    (job,) = (await checked(cli, changed, code=1))["jobs"]
    assert (job["verdict"], job["step"]) == ("diverged", "long#0/store#0")


async def test_only_so_many_jobs_are_replayed_as_asked(cli: Cli, start: Start, sql: Sql) -> None:
    first = await park(cli, start, sql)
    copy = "insert into agentrt.jobs(agent, payload, status, fence, run_after) select agent, payload, status, fence, run_after"
    await sql.run(f"{copy} from agentrt.jobs, generate_series(1, 120) where id = $1", first)
    steps = "job_id, step, kind, fence, done, output, fingerprint, place"
    await sql.run(
        f"insert into agentrt.steps({steps}) select j.id, {steps.removeprefix('job_id, ').replace('fence', 's.fence')}"
        " from agentrt.steps s, agentrt.jobs j where s.job_id = $1 and j.id > $1 and j.agent = 'writer'", first,
    )  # fmt: skip
    few, all_of_them = await checked(cli, None, "--limit", "2"), await checked(cli, None)
    assert ([job["id"] for job in few["jobs"]][:1], few["checked"], few["cut"]) == ([first], 2, True)
    assert (all_of_them["checked"], all_of_them["cut"]) == (121, False)
    assert {job["verdict"] for job in all_of_them["jobs"]} == {"waits"}


async def test_modules_that_cannot_be_checked_are_wrong_usage(cli: Cli) -> None:
    assert "There is no module 'nowhere'" in (await cli("check", "nowhere")).refused(2)
    (cli.folder / "agents.py").write_text(head + recorded)
    none = await cli("check", "agents.py", "--json")
    assert (none.code, none.value) == (0, {"ok": True, "checked": 0, "cut": False, "jobs": []})


async def test_why_shows_both_sides_of_a_divergence_and_the_command_that_goes_on(
    cli: Cli, start: Start, sql: Sql
) -> None:
    job_id = await park(cli, start, sql)
    other = start(
        "run", "agents.py", "--warm", "0.05", source=head + recorded.replace("(fetch, text)", "(fetch, text + '!')")
    )
    await other.until("supervisor.started")
    await cli("decide", job_id, "yes")
    await sql.until(job_id, "failed")
    line = (await cli("why", job_id, "--json")).value["why"]
    assert "its code no longer does what was recorded: Diverged: step fetch#0 recorded as a step at agents.py:" in line
    assert "now a step at agents.py:" in line
    assert "('otters!',)" in line
    command = f"agentrt retry {job_id} --from 'fetch#0'"
    assert line.endswith(command)
    assert (await cli(*shlex.split(command)[1:])).code == 0
    await sql.until(job_id, "running", "parked")
    assert await sql.value("select count(*) from agentrt.steps where job_id = $1 and step = 'store#0'", job_id) == 0
    await other.stop()
