"""The page: whole in itself, true to the database, and texts stay texts."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import agentrt
from agentrt import Fail, agent
from tests.support import Sql, eventually
from tests.web.conftest import Door, Open

hostile = "<img src=x onerror=\"document.title='taken'\"></script><script>document.title='taken'</script>"
browser = shutil.which("chromium") or shutil.which("chromium-browser")


@agent
async def closer(text: str) -> None:
    raise Fail(text)


def of_agent(state: Any, name: str) -> dict[str, Any]:
    (entry,) = [entry for entry in state["agents"] if entry["agent"] == name]
    found: dict[str, Any] = entry
    return found


async def with_one_failed(door: Door, sql: Sql, text: str = hostile) -> int:
    job = await closer[hostile].send(text)
    await sql.until(job.id, "failed")
    return job.id


async def test_the_state_shows_supervisors_agents_and_the_newest_jobs_first(
    opened: Open, client: agentrt.Client, sql: Sql
) -> None:
    for _ in range(60):
        await agentrt.to("nobody").send()
    later = await agentrt.to("nobody")["k"].options(delay_s=3600).send()
    async with opened(closer, slots=3) as door:
        failed = await with_one_failed(door, sql)

        async def signed_on() -> Any:
            state = await door.json("state.json")
            return state if state["supervisors"] and state["jobs"][0]["state"] == "failed" else None

        state = await eventually(signed_on)
    assert state["problem"] is None
    (row,) = state["supervisors"]
    assert (row["id"], row["slots"], row["state"], row["agents"]) == (str(door.supervisor.id), 3, "running", ["closer"])
    assert of_agent(state, "nobody") == {"agent": "nobody", "served": False, "counts": {"ready": 60, "scheduled": 1}}
    assert of_agent(state, "closer")["served"] is True
    assert len(state["jobs"]) == 50
    assert [job["id"] for job in state["jobs"][:2]] == [failed, later.id]
    first, second = state["jobs"][:2]
    assert (first["agent"], first["key"], first["state"], first["attempt"]) == ("closer", hostile, "failed", 1)
    assert hostile in first["error"]
    assert (second["state"], second["key"], second["error"]) == ("scheduled", "k", "")
    assert 3500 < second["due_s"] <= 3600


async def test_payloads_results_and_passwords_are_not_shown(
    opened: Open, client: agentrt.Client, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    await agentrt.to("nobody").send(content="the payload")
    await sql.run("update agentrt.jobs set last_error = 'postgresql://me:hunter22@db/x refused'")
    async with opened(closer) as door:
        _, text, headers = await door.ask("state.json")
    assert "the payload" not in text
    assert "me:***@db/x" in text
    assert headers["content-type"] == "application/json; charset=utf-8"


async def test_a_long_error_and_a_moment_that_never_comes_are_shown(
    opened: Open, client: agentrt.Client, sql: Sql
) -> None:
    await agentrt.to("nobody").options(delay_s=60).send()
    await sql.run(
        "update agentrt.jobs set last_error = repeat('é', 8000), run_after = 'infinity', created_at = '-infinity'"
    )
    async with opened(closer) as door:
        state = await door.json("state.json")
    (job,) = state["jobs"]
    assert job["error"] == "é" * 300 + "…"
    assert (job["due_s"], job["age_s"]) == (None, None)


async def test_the_page_needs_nothing_from_elsewhere_and_its_policy_lets_only_its_own_script_run(opened: Open) -> None:
    async with opened(closer) as door:
        _, page, headers = await door.ask("")
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert not re.findall(r"(?:https?:)?//[\w.]", page)
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\bon\w+=|style=|eval\(", page)
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none';")
    for kind in ("style", "script"):
        (inline,) = re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


@pytest.mark.skipif(browser is None, reason="no chromium here")
async def test_in_a_browser_a_hostile_error_text_is_shown_as_text(
    opened: Open, client: agentrt.Client, sql: Sql, tmp_path: Path
) -> None:
    async with opened(closer) as door:
        job_id = await with_one_failed(door, sql, hostile + "\u202e")
        process = await asyncio.create_subprocess_exec(
            str(browser),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            f"--user-data-dir={tmp_path}",
            "--virtual-time-budget=3000",
            "--dump-dom",
            door.url,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        output, _ = await process.communicate()
    document = output.decode()
    assert "<title>agentrt · 0 running</title>" in document
    assert f">{job_id}</td>" in document
    assert "&lt;img src=x onerror=" in document
    assert "<img" not in document
    assert document.count("<script>") == 1
    assert "\\u202e" in document
