"""C48, schedule: a time without a zone means another moment in each process, so a delayed job runs hours early or late."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

import agentrt
from agentrt import UsageError
from tests.cases.doors import refused_by_the_command_line
from tests.conftest import Start
from tests.support import Sql

pytestmark = pytest.mark.case
delay_s = 8.0  # no command starts later than that
late_s = 120.0  # by far less than the zones differ
instant = agentrt.to("instant")


@pytest.fixture(autouse=True)
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The sender's zone; the worker of these tests lives in New York, and the database where it likes."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def moments() -> list[datetime]:
    """The same moment in several zones."""
    utc = datetime.now(UTC) + timedelta(seconds=delay_s)
    return [
        utc,
        utc.astimezone(),
        utc.astimezone(ZoneInfo("America/New_York")),
        utc.astimezone(timezone(timedelta(hours=-11))),
    ]


async def test_an_aware_time_is_the_same_moment_in_every_process(
    start: Start, client: agentrt.Client, sql: Sql
) -> None:
    assert datetime.now().astimezone().utcoffset() == timedelta(hours=9)
    worker = start("run", str(Path(__file__).parent / "ledger.py"), "--poll", "600", environ={"TZ": "America/New_York"})
    await worker.until("supervisor.started")
    asked = moments()
    jobs = [await instant.options(run_at=moment).send(n=n) for n, moment in enumerate(asked)]
    command = start("send", "instant", "--at", asked[1].isoformat(), "n=9", name="send")  # in the sender's local time
    assert await command.ended() == 0, command.log()
    for job in (*jobs, client.job(int(command.log()))):
        await job.result(timeout_s=30)
    rows = await sql.rows("select run_after, claimed_at from agentrt.history order by id")
    assert [row["run_after"] for row in rows] == [asked[0]] * 5
    assert all(timedelta(0) <= row["claimed_at"] - row["run_after"] < timedelta(seconds=late_s) for row in rows)


async def test_a_delay_counts_from_the_databases_clock_whatever_the_zones(
    start: Start, client: agentrt.Client, sql: Sql
) -> None:
    start("run", str(Path(__file__).parent / "ledger.py"), "--poll", "600", environ={"TZ": "America/New_York"})
    job = await instant.options(delay_s=delay_s).send()
    await job.result(timeout_s=30)
    row = await sql.job(job.id)
    assert timedelta(seconds=delay_s) <= row["claimed_at"] - row["created_at"] < timedelta(seconds=delay_s + late_s)


async def test_a_naive_time_is_refused_and_the_error_says_what_to_give(
    start: Start, client: agentrt.Client, sql: Sql
) -> None:
    for naive in (datetime.now() + timedelta(seconds=5), datetime.max, datetime.min):  # noqa: DTZ005, DTZ901 - the fault under test
        with pytest.raises(UsageError, match=r"run_at is .*without a time zone"):
            instant.options(run_at=naive)
    line = await refused_by_the_command_line(start, sql, "instant", "--at", "2026-12-01T09:00")
    assert "without a time zone" in line
    assert os.environ["TZ"] == "Asia/Tokyo"


@pytest.mark.parametrize(
    "zone", [UTC, timezone(timedelta(hours=-11)), timezone(timedelta(hours=14)), ZoneInfo("America/New_York")], ids=str
)
async def test_a_time_far_from_now_is_refused_clearly_and_one_that_has_passed_means_at_once(
    zone: timezone | ZoneInfo, start: Start, client: agentrt.Client, sql: Sql
) -> None:
    for far in (datetime.max.replace(tzinfo=zone), datetime.now(zone) + timedelta(days=20 * 366)):
        with pytest.raises(UsageError, match=r"run_at is .* years ahead"):
            instant.options(run_at=far)
    line = await refused_by_the_command_line(
        start, sql, "instant", "--at", datetime.max.replace(tzinfo=zone).isoformat()
    )
    assert "years ahead" in line
    for past in (datetime.now(zone) - timedelta(days=3), datetime.min.replace(tzinfo=zone)):
        job = await instant.options(run_at=past).send()
        assert await job.status() is agentrt.State.ready
