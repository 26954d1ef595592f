"""The chaos run in small: kill -9 at random moments breaks no promise, and a broken one ends the program with 1."""

from __future__ import annotations

import asyncio
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import execute, on_server
from tests.crash import chaos

rounds = 6


@pytest.fixture
def database_url(server: str) -> Iterator[str]:
    """A fresh database for what runs an event loop of its own."""
    name = f"agentrt_test_{uuid.uuid4().hex[:12]}"
    asyncio.run(execute(server, f'create database "{name}"'))
    yield on_server(server, name)
    asyncio.run(execute(server, f'drop database "{name}" with (force)'))


async def test_kills_at_random_moments_lose_nothing_double_nothing_and_keep_every_order(
    database: str, tmp_path: Path
) -> None:
    said: list[str] = []
    plan = chaos.Plan(rounds=rounds, jobs=20, seed=chaos.random_seed(), dsn=database, folder=tmp_path, schema="chaos")

    outcome = await chaos.run(plan, said.append)

    assert outcome.violations == [], f"seed {plan.seed}"
    assert outcome.kills == rounds + 1
    assert outcome.crashed > 0, "no kill hit a running job: the run proves nothing"
    assert outcome.jobs >= rounds * 20
    assert said[-1].startswith(f"round {rounds}/{rounds}")


def test_the_program_prints_its_seed_and_what_it_saw(database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert chaos.main(["--rounds", "1", "--jobs", "6", "--seed", "7", "--database", database_url]) == 0

    printed = capsys.readouterr().out
    assert printed.startswith("seed 7: 1 rounds of 6 jobs")
    assert "every promise held" in printed


def test_a_broken_promise_is_shown_and_ends_the_program_with_1(
    database_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos, "check", lambda evidence: [f"job {evidence.sent[0].id} is lost"])

    assert chaos.main(["--rounds", "1", "--jobs", "6", "--database", database_url]) == 1

    printed = capsys.readouterr().out
    assert "1 violations" in printed
    assert "is lost" in printed
    ((seed, folder),) = re.findall(r"^seed (\d+): .* logs in (\S+)", printed)
    assert f"--seed {seed}" in printed
    assert list(Path(folder).glob("supervisor-*.log"))
    shutil.rmtree(folder)
