"""Log lines: whatever a line holds, it is written, and no secret is in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

program = """
import structlog
from agentrt.config import setup_logging
setup_logging("info", as_json=True)
log = structlog.get_logger("test")
log.info("plain", text="got the pässword-ü-1 here", address="postgresql://u:hunter2@h/d")
log.info("surrogate", odd="\\ud800", text="got the pässword-ü-1 here")
log.info("inside", error=ValueError("got the pässword-ü-1 here"), parts=["got the pässword-ü-1 here", 1, None, {"x": 1.5}])
log.info("large", number=2**70, text="got the pässword-ü-1 here", quoted='got the quo"ted-secret here')
"""


@pytest.mark.parametrize("other", [b"another-secret", b"no text \xff\xfe at all"], ids=["text", "not UTF-8"])
def test_a_line_that_json_can_hardly_hold_is_written_and_holds_no_secret(other: bytes) -> None:
    secrets = {b"MY_TOKEN": "pässword-ü-1".encode(), b"QUOTED_SECRET": b'quo"ted-secret', b"OTHER_TOKEN": other}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environb, **secrets}, capture_output=True, timeout=60, check=True
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    plain, surrogate, inside, large = lines
    assert [line["event"] for line in lines] == ["plain", "surrogate", "inside", "large"]
    assert [line["text"] for line in (plain, surrogate, large)] == ["got the *** here"] * 3
    assert inside["error"] == "got the *** here"
    assert inside["parts"] == ["got the *** here", 1, None, {"x": 1.5}]
    assert plain["address"] == "postgresql://u:***@h/d"
    assert (large["number"], large["quoted"]) == (2**70, "got the *** here")


fails = """
import structlog
from agentrt.config import setup_logging
setup_logging("info", as_json={as_json})
password = "correct-horse"
try:
    raise ValueError(f"cannot reach postgresql://u:{{password}}@h/d")
except ValueError:
    structlog.get_logger("test").exception("failed")
"""


@pytest.mark.parametrize("as_json", [True, False], ids=["json", "terminal"])
def test_the_text_of_an_exception_is_in_its_line_without_a_secret_and_without_local_variables(as_json: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", fails.format(as_json=as_json)], capture_output=True, timeout=60, check=True, text=True
    )
    assert "cannot reach postgresql://u:***@h/d" in done.stderr
    assert "Traceback" in done.stderr
    assert "correct-horse" not in done.stderr
