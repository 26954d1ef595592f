"""C34 (shutdown): an idle worker sleeps out its poll interval before it sees that it shall stop."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.conftest import Start

pytestmark = pytest.mark.case
ledger = str(Path(__file__).parent / "ledger.py")
soon_s = 8.0  # the poll, the quiet sweep and the beat of an idle supervisor are all longer


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_an_idle_supervisor_ends_as_soon_as_it_is_told(start: Start, number: signal.Signals) -> None:
    program = start("run", ledger, "--poll", "600")
    await program.until("supervisor.started")

    told_at = time.monotonic()
    program.signal(number)
    assert await program.ended(within_s=soon_s) == 0
    assert time.monotonic() - told_at < soon_s
    assert program.events("supervisor.stopped")
