"""`agentrt run`: the options about waits and values reach the processes that run the jobs."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Cli
from tests.conftest import Start
from tests.support import Sql

source = """
import agentrt
from agentrt import agent, step

async def large(size: int) -> str:
    return "x" * size

@agent
async def sleeper(size: int) -> None:
    await step(large, size)
    await agentrt.sleep(3600)
"""


@pytest.mark.parametrize("by_environment", [False, True])
async def test_the_children_of_a_minder_park_and_refuse_as_told(
    cli: Cli, start: Start, sql: Sql, by_environment: bool
) -> None:
    options = ["--warm", "0.05", "--step-bytes", "2000"]
    environ = {"AGENTRT_WARM_S": "0.05", "AGENTRT_STEP_BYTES": "2000"}
    program = start(
        *("run", "agents.py", "--processes", "2", *([] if by_environment else options)),
        source=source,
        environ=environ if by_environment else None,
    )
    fits, too_large = [int((await cli("send", "sleeper", f"size={size}")).out) for size in (1_500, 2_500)]
    await sql.until(fits, "parked")
    row = await sql.until(too_large, "failed")
    assert "large#0" in row["last_error"]
    assert "at most 2,000" in row["last_error"]
    assert await program.stop() == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["--warm", "-1"], "warm_s is -1"), (["--step-bytes", "10"], "step_bytes_max is 10; it must be from 1000 to")],
)
async def test_values_out_of_their_limits_are_refused(words: list[str], expected: str, cli: Cli) -> None:
    assert expected in (await cli("run", "agents.py", *words)).refused(2)
