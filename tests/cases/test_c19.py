"""C19 (retry): the exponential delay overflows before its cap is applied, and the job drops out of the chain or the loop dies."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

import agentrt
from tests.conftest import Start
from tests.support import Sql

pytestmark = pytest.mark.case
ledger = str(Path(__file__).parent / "ledger.py")
cap_s = 3600.0
source = f"""
from agentrt import Retry, agent

@agent(retry=Retry(max_attempts=100_000, base_s=5, factor=5, cap_s={cap_s}, jitter=0.2))
async def fails() -> None:
    raise ValueError("again")
"""


@pytest.mark.parametrize("attempt", [6, 50, 2_000, 50_000])
async def test_the_wait_after_any_number_of_attempts_is_the_cap_less_its_jitter(
    start: Start, client: agentrt.Client, sql: Sql, attempt: int
) -> None:
    job = await agentrt.to("fails").options(delay_s=600).send()
    await sql.run("update agentrt.jobs set attempt = $1, run_after = now() where id = $2", attempt - 1, job.id)
    program = start("run", "agents.py", "--poll", "600", source=source)
    (retried,) = await program.until("job.retried", job_id=job.id)

    row = await sql.job(job.id)
    assert row["state"] == "scheduled"
    assert row["attempt_count"] == attempt
    assert cap_s * 0.8 <= retried["delay_s"] <= cap_s
    wait = row["run_after"] - await sql.value("select ended_at from agentrt.attempts where job_id = $1", job.id)
    assert timedelta(seconds=cap_s * 0.8) <= wait <= timedelta(seconds=cap_s + 1)
    assert program.events("loop.died") == []
    assert await program.stop() == 0
