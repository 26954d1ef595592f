"""The page behind a question's link: real processes serve it, real requests ask for it, the database says what is so."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from agentrt import Client
from agentrt.durable.decision import signature
from tests.conftest import Start, execute
from tests.support import Sql, eventually
from tests.web.desk import Desk, desk_of, secret

hostile = '<img src=x onerror="alert(1)"></script><script>alert(1)</script>'
odd = "line\r\nend & \"quotes\" 'too' é🦦"


@pytest.fixture(autouse=True)
def same_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRT_SECRET", secret)


@pytest.fixture
async def desk(start: Start, sql: Sql, client: Client) -> AsyncIterator[Desk]:
    async with desk_of(start, sql) as one:
        yield one


async def test_a_post_answers_and_every_later_visit_is_told_who_decided_what(desk: Desk) -> None:
    job_id, decision_id = await desk.ask(who=["ann", "bob"], within_s=3 * 86_400, default="no")
    link = desk.link(decision_id, "ann")
    page = await desk.get(link)
    assert page.status == 200
    assert "Publish?" in page.text
    assert "ann, bob" in page.text
    assert "in 3 d; the answer is then no" in page.text
    assert page.text.count("<button") == 2

    page = await desk.post(link, option="yes")
    assert (page.status, page.outcome) == (200, "recorded: yes, by ann")
    assert "<button" not in page.text
    row = await desk.sql.until(job_id, "succeeded")
    assert row["result"] == '{"option":"yes","by":"ann"}'

    for by in ("ann", "bob"):
        seen = await desk.get(desk.link(decision_id, by))
        again = await desk.post(desk.link(decision_id, by), option="no")
        assert (seen.status, again.status) == (200, 409)
        for page in (seen, again):
            assert page.outcome.startswith("already decided by ann: yes (")
            assert "<button" not in page.text
    assert (await desk.question(decision_id))["answer"] == "yes"


async def test_looking_changes_nothing(desk: Desk) -> None:
    job_id, decision_id = await desk.ask()
    await desk.sql.until(job_id, "running", "parked")
    before, steps = await desk.question(decision_id), await desk.sql.rows("select * from agentrt.steps")
    for _ in range(3):
        await desk.get(desk.link(decision_id, "link"))
        await desk.get(desk.link(decision_id, "link") + "&option=yes")
        async with desk.session.head(desk.link(decision_id, "link")) as answer:
            assert answer.status == 200
    assert await desk.question(decision_id) == before
    assert await desk.sql.rows("select * from agentrt.steps") == steps
    for method in ("PUT", "PATCH", "DELETE"):
        async with desk.session.request(method, desk.link(decision_id, "link")) as answer:
            assert answer.status == 405


async def test_without_a_good_signature_nothing_is_told_and_nothing_done(desk: Desk) -> None:
    _, decision_id = await desk.ask("Shall we tell?", ("aye", "nay"), who=["ann", "bob"])
    _, other_id = await desk.ask("Another?")
    base = f"{desk.url}decide/{decision_id}"
    good = signature(decision_id, "ann")
    bad = [
        base,
        f"{base}?by=ann",
        f"{base}?signature={good}",
        f"{base}?by=ann&signature=",
        f"{base}?by=ann&signature={good[:-1]}",
        f"{base}?by=ann&signature={good.upper()}x",
        f"{base}?by=bob&signature={good}",
        f"{base}?by=ann&signature={signature(other_id, 'ann')}",
        f"{base}?by=ann&by=bob&signature={good}",
        f"{base}?by=ann&signature={good}&signature={good}",
        f"{base}?by=ann&signature=%C3%A9%F0%9F%A6%A6",
        f"{base}?by=%ff%fe&signature={good}",
        f"{base}?by=a%00b&signature={good}",
        f"{base}?by={'x' * 201}&signature={good}",
        f"{desk.url}decide/99999999999999999999?by=ann&signature={good}",
        f"{desk.url}decide/-{decision_id}?by=ann&signature={good}",
        f"{desk.url}decide/x?by=ann&signature={good}",
        f"{desk.url}decide/٣?by=ann&signature={good}".replace("٣", "%D9%A3"),
    ]
    for url in bad:
        for page in (await desk.get(url), await desk.post(url, option="aye")):
            assert (page.status, page.notice[:27]) == (403, "This link is not valid. Ask"), url
            assert not re.search("tell|aye|nay|bob", page.text.partition("</style>")[2]), url
    assert (await desk.question(decision_id))["answer"] is None


async def test_a_question_that_is_not_there_and_one_that_is_not_for_the_link(desk: Desk) -> None:
    _, decision_id = await desk.ask("Shall we tell?", ("aye", "nay"), who=["ann"])
    for page in (await desk.get(desk.link(123_456, "ann")), await desk.post(desk.link(123_456, "ann"), option="aye")):
        assert (page.status, page.notice[:26]) == (404, "There is no such question.")
    for page in (
        await desk.get(desk.link(decision_id, "bob")),
        await desk.post(desk.link(decision_id, "bob"), option="aye"),
    ):
        assert (page.status, page.notice) == (403, "bob may not answer this question.")
        assert not re.search("tell|aye|nay|ann", page.text.partition("</style>")[2])
    assert (await desk.question(decision_id))["answer"] is None


async def test_only_an_option_is_an_answer(desk: Desk) -> None:
    _, decision_id = await desk.ask()
    link = desk.link(decision_id, "link")
    for form in ({}, {"option": "maybe"}, {"option": ""}, {"option": "Yes"}, {"answer": "yes"}):
        assert (await desk.post(link, **form)).status == 400, form
    bodies: list[dict[str, Any]] = [
        {"data": b"option=yes&option=yes", "headers": {"Content-Type": "application/x-www-form-urlencoded"}},
        {"data": b"option=\xff", "headers": {"Content-Type": "application/x-www-form-urlencoded"}},
        {"data": b"option=yes", "headers": {"Content-Type": "text/plain"}},
        {"json": {"option": "yes"}},
    ]
    for body in bodies:
        async with desk.session.post(link, **body) as answer:
            assert answer.status == 400, body
    async with desk.session.post(link, data={"option": "yes" * 10_000}) as answer:
        assert answer.status == 413
    assert (await desk.question(decision_id))["answer"] is None
    assert (await desk.post(link, option="yes")).outcome == "recorded: yes, by link"


async def test_texts_stay_texts_and_an_option_of_odd_signs_can_be_chosen(desk: Desk) -> None:
    long = "🦦" * 200
    job_id, decision_id = await desk.ask(hostile + "\u202e", (odd, hostile, long), who=[hostile])
    page = await desk.get(desk.link(decision_id, hostile))
    assert page.status == 200
    assert "<img" not in page.text
    assert "<script" not in page.text
    assert "&lt;img src=x onerror=&quot;" in page.text
    assert "\\u202e" in page.text
    assert 'value="line&#13;&#10;end &amp; &quot;quotes&quot; &#x27;too&#x27; é🦦"' in page.text
    assert (await desk.post(desk.link(decision_id, hostile), option=odd)).status == 200
    row = await desk.sql.until(job_id, "succeeded")
    assert "line\\r\\nend" in row["result"]
    _, decision_id = await desk.ask("Long?", ("no", long, "one\nmore"))
    assert (await desk.post(desk.link(decision_id, "link"), option=long)).status == 200
    _, decision_id = await desk.ask("Lines?", ("no", "one\nmore"))  # a browser sends its line end as another one
    assert (await desk.post(desk.link(decision_id, "link"), option="one\r\nmore")).status == 200
    assert (await desk.question(decision_id))["answer"] == "one\nmore"


async def test_the_answer_goes_into_no_cache_no_frame_and_no_referrer_and_its_policy_runs_no_script(desk: Desk) -> None:
    _, decision_id = await desk.ask()
    for page in (await desk.get(desk.link(decision_id, "link")), await desk.get(f"{desk.url}decide/{decision_id}")):
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.headers["cache-control"] == "no-store"
        assert page.headers["referrer-policy"] == "no-referrer"
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["x-frame-options"] == "DENY"
        policy = page.headers["content-security-policy"]
        (style,) = re.findall(r"<style>(.*?)</style>", page.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        assert policy == (
            f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'self';"
            " frame-ancestors 'none'"
        )
        assert not re.findall(r"<script|\bon\w+=|style=|(?:https?:)?//[\w.]", page.text)


async def test_an_expired_question_and_one_whose_job_has_ended_say_so(desk: Desk, client: Client) -> None:
    job_id, decision_id = await desk.ask(within_s=0.2, default="no")
    await desk.sql.until(job_id, "succeeded")
    _, without_default = await desk.ask(within_s=0.2)

    async def expired() -> bool:
        return "expired" in (await desk.get(desk.link(without_default, "link"))).outcome

    await eventually(expired)
    closed_job, closed = await desk.ask()
    await client.job(closed_job).cancel()
    await desk.sql.until(closed_job, "cancelled")
    expectations = {
        decision_id: "expired: nobody answered in time; the answer is no",
        without_default: "expired: nobody answered in time",
        closed: "closed: the job that asked has ended",
    }
    for one, outcome in expectations.items():
        seen, answered = await desk.get(desk.link(one, "link")), await desk.post(desk.link(one, "link"), option="yes")
        assert (seen.status, seen.outcome) == (200, outcome)
        assert (answered.status, answered.outcome) == (409, outcome)
        assert "<button" not in seen.text + answered.text
        assert (await desk.question(one))["answer"] is None


@pytest.mark.parametrize("given", ["", "too short"])
async def test_a_process_without_a_secret_says_so_and_how_to_mend_it(
    given: str, start: Start, sql: Sql, client: Client
) -> None:
    async with desk_of(start, sql, AGENTRT_SECRET=given) as desk:
        _, decision_id = await desk.ask()
        for page in (await desk.get(desk.link(decision_id, "link")), await desk.post(desk.link(decision_id, "link"))):
            assert page.status == 503
            assert f"AGENTRT_SECRET has {len(given)} characters" in page.notice
            assert "Publish" not in page.text
        assert (await desk.question(decision_id))["answer"] is None


async def test_while_the_database_is_away_the_page_says_that_nothing_was_changed(
    desk: Desk, server: str, database: str
) -> None:
    _, decision_id = await desk.ask()
    name, here = urlsplit(database).path[1:], await desk.sql.value("select pg_backend_pid()")
    ends = f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}' and pid <> {here}"
    await execute(server, f'alter database "{name}" with allow_connections false', ends)
    try:
        page = await desk.post(desk.link(decision_id, "link"), option="yes")
        assert (page.status, page.notice[:30]) == (503, "The database does not answer. ")
    finally:
        await execute(server, f'alter database "{name}" with allow_connections true')

    async def answered() -> bool:
        return (await desk.post(desk.link(decision_id, "link"), option="yes")).status in (200, 409)

    await eventually(answered)
    assert (await desk.question(decision_id))["answer"] == "yes"


async def test_with_several_processes_the_one_page_wakes_the_job_wherever_it_runs(
    start: Start, sql: Sql, client: Client
) -> None:
    async with desk_of(start, sql, "--processes", "2", "--slots", "4") as desk:
        asked = [await desk.ask() for _ in range(8)]
        pages = await asyncio.gather(*(desk.post(desk.link(question, "ann"), option="no") for _, question in asked))
        assert {page.outcome for page in pages} == {"recorded: no, by ann"}
        for job_id, _ in asked:
            assert (await sql.until(job_id, "succeeded"))["result"] == '{"option":"no","by":"ann"}'
        await sql.until_none_unfinished()


async def test_open_questions_show_with_their_age_but_without_their_texts(desk: Desk) -> None:
    job_id, decision_id = await desk.ask("Shall we tell?", ("aye", "nay"), who=["ann"], within_s=3_600)

    async def listed() -> Any:
        async with desk.session.get(desk.url + "state.json") as answer:
            text = await answer.text()
            assert not re.search("tell|aye|nay|ann", text)
            return (await answer.json()).get("decisions")

    (entry,) = await eventually(listed)
    assert (entry["id"], entry["job_id"], entry["agent"], entry["who"]) == (decision_id, job_id, "asker", 1)
    assert 0 <= entry["age_s"] < 60
    assert 3_500 < entry["left_s"] <= 3_600


async def test_the_metrics_count_the_questions_that_are_open(desk: Desk, client: Client) -> None:
    for _ in range(3):
        await desk.ask()
    answered_job, answered = await desk.ask()
    closed_job, _ = await desk.ask()
    await desk.post(desk.link(answered, "link"), option="yes")
    await client.job(closed_job).cancel()
    await desk.sql.until(closed_job, "cancelled")
    await desk.sql.until(answered_job, "succeeded")

    async def counted() -> bool:
        async with desk.session.get(desk.url + "metrics") as answer:
            return "\nagentrt_decisions_open 3.0\n" in await answer.text()

    await eventually(counted)
