"""The agent that asks on Discord: real processes run it and serve its links; the Discord is a double on loopback."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from agentrt import Client, Fail, Job, Question, to
from agentrt.agents.discord_decision import message_of
from agentrt.agents.discord_text import split, units
from agentrt.testing import FakeDiscord
from tests.conftest import Start
from tests.support import Program, Sql, eventually
from tests.web.desk import Desk, desk_of, secret


@pytest.fixture
async def discord() -> AsyncIterator[FakeDiscord]:
    async with FakeDiscord(limit=50) as server:
        yield server


@dataclass
class Office:
    """A Discord, a process with the page (the desk's), and processes that run the agent."""

    discord: FakeDiscord
    desk: Desk
    start: Start
    sql: Sql

    def agents(self, **environ: str) -> Program:
        given = {
            "AGENTRT_SECRET": secret,
            "AGENTRT_PUBLIC_URL": self.desk.url,
            "DISCORD_WEBHOOK": self.discord.webhook(),
            "DISCORD_WEBHOOK_OPS": self.discord.webhook("ops"),
        }
        return self.start("run", "agentrt.agents", name="worker", environ={**given, **environ})

    async def ask(self, **more: Any) -> Job[Any]:
        return await to("discord_decision").send(question="Publish?", options=["yes", "no"], **more)

    async def announced(self, job: Job[Any]) -> None:
        """Wait until the post is recorded."""
        await eventually(
            lambda: self.sql.value(
                "select done from agentrt.steps where job_id = $1 and step = 'decide#0/announce#0'", job.id
            )
        )

    def links(self, webhook: str = "default") -> list[str]:
        return re.findall(r"<(http[^>\s]+)>", "\n".join(self.discord.contents(webhook)))


@pytest.fixture
async def office(
    discord: FakeDiscord, start: Start, sql: Sql, client: Client, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Office]:
    monkeypatch.setenv("AGENTRT_SECRET", secret)
    async with desk_of(start, sql) as desk:
        yield Office(discord, desk, start, sql)


async def test_each_person_gets_a_link_and_the_first_answer_is_the_result(office: Office) -> None:
    office.agents()
    job = await office.ask(webhook="ops", who=["ann", "bob"], within_s=3 * 86_400, default="no")
    await office.discord.wait_messages(1, timeout_s=30)
    (post,) = office.discord.messages
    assert (post.webhook, post.body["allowed_mentions"]) == ("ops", {"parse": []})
    lines = post.content.splitlines()
    assert lines[:4] == ["Publish?", "", "Options: **yes** · **no**", "To be answered within 3 days."]
    assert [line.partition(": ")[0] for line in lines[4:]] == ["ann", "bob"]
    anns, bobs = office.links("ops")
    assert anns.startswith(f"{office.desk.url}decide/")

    assert "Publish?" in (await office.desk.get(anns)).text
    assert (await office.desk.post(bobs, option="yes")).outcome == "recorded: yes, by bob"
    assert (await office.desk.post(anns, option="no")).outcome.startswith("already decided by bob: yes")
    assert await job.result(timeout_s=20) == {"option": "yes", "by": "bob"}
    assert len(office.discord.requests) == 1


async def test_without_names_there_is_one_link_for_anybody(office: Office) -> None:
    office.agents()
    job = await office.ask()
    await office.discord.wait_messages(1, timeout_s=30)
    (link,) = office.links()
    await office.desk.post(link, option="no")
    assert await job.result(timeout_s=20) == {"option": "no", "by": "discord"}


async def test_a_process_killed_between_post_and_answer_posts_once_and_is_answered_once(office: Office) -> None:
    first = office.agents()
    job = await office.ask(who=["ann"])
    await office.discord.wait_messages(1, timeout_s=30)
    await office.announced(job)
    first.kill()
    second = office.agents()
    await second.until("job.claimed", job_id=job.id)
    second.kill()
    (link,) = office.links()
    assert (await office.desk.post(link, option="yes")).outcome == "recorded: yes, by ann"
    office.agents()
    assert await job.result(timeout_s=30) == {"option": "yes", "by": "ann"}
    assert len(office.discord.requests) == 1
    assert await office.sql.value("select count(*) from agentrt.decisions") == 1
    assert (await office.desk.post(link, option="no")).outcome.startswith("already decided by ann: yes")


async def test_a_post_that_fails_is_repeated_and_the_question_stays_the_same(office: Office) -> None:
    office.discord.fail_next(502)
    office.discord.limit_next(0.2, header="1")
    office.agents()
    job = await office.ask()
    await office.discord.wait_messages(1, timeout_s=30)
    await office.announced(job)
    (link,) = office.links()
    await office.desk.post(link, option="yes")
    assert await job.result(timeout_s=20) == {"option": "yes", "by": "discord"}
    assert sorted(office.discord.statuses()) == [200, 429, 502]
    assert await office.sql.value("select count(*) from agentrt.decisions") == 1


async def test_nobody_in_time_gives_the_default_or_fails_the_job(office: Office) -> None:
    office.agents()
    with_default = await office.ask(within_s=0.5, default="no")
    without = await office.ask(within_s=0.5)
    assert await with_default.result(timeout_s=20) == {"option": "no", "by": None}
    row = await office.sql.until(without.id, "failed")
    assert (row["attempt_count"], "DecisionExpired" in row["last_error"]) == (1, True)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"AGENTRT_PUBLIC_URL": ""}, "AGENTRT_PUBLIC_URL is ''"),
        ({"AGENTRT_SECRET": "short"}, "AGENTRT_SECRET has 5 characters"),
        ({"DISCORD_WEBHOOK": ""}, "Set DISCORD_WEBHOOK to its address"),
    ],
)
async def test_a_variable_that_is_missing_is_named_and_a_retry_by_hand_asks_when_it_is_there(
    environ: dict[str, str], said: str, office: Office, client: Client
) -> None:
    wrong = office.agents(**environ)
    job = await office.ask()
    row = await office.sql.until(job.id, "failed")
    assert (row["reason"], row["attempt_count"]) == ("fatal", 1)
    assert said in row["last_error"]
    assert office.discord.requests == []
    await wrong.stop()
    await client.store.retry(job.id)
    office.agents()
    await office.discord.wait_messages(1, timeout_s=30)
    (link,) = office.links()
    await office.desk.post(link, option="yes")
    assert await job.result(timeout_s=20) == {"option": "yes", "by": "discord"}


async def test_a_question_that_cannot_be_asked_fails_for_good(office: Office) -> None:
    office.agents()
    for options, more in ((["yes", "yes"], {}), (["yes", "no"], {"default": "maybe", "within_s": 60})):
        job = await to("discord_decision").send(question="Publish?", options=options, **more)
        row = await office.sql.until(job.id, "failed")
        assert (row["reason"], row["attempt_count"]) == ("fatal", 1), row
    assert office.discord.requests == []


# ------------------------------------------------------------------ the text


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRT_SECRET", secret)
    monkeypatch.setenv("AGENTRT_PUBLIC_URL", "https://agents.example.org/")


@pytest.mark.parametrize(
    "text", ["Well?", "x" * 4_000, "word " * 800, "```py\nx = 1\n", "```\n" + "x = 1\n" * 600, "🦦" * 2_000]
)
def test_whatever_is_asked_links_stay_whole_and_outside_of_code(text: str, here: None) -> None:
    people = tuple(f"person {number} é" for number in range(40))
    question = Question(17, text, ("yes", "no"), people, None)
    parts = split(message_of(question))
    assert all(units(part) <= 2_000 for part in parts)
    assert all(part.count("```") % 2 == 0 for part in parts)
    found = [link for part in parts for link in re.findall(r"<(https[^>\s]+)>", re.sub(r"(?s)```.*?```", "", part))]
    assert found == [question.link(name) for name in people]


def test_names_and_options_stay_text(here: None) -> None:
    question = Question(17, "Well?", ("*yes*", "@everyone", "a\nb"), ("<@1>\n[x](http://evil)", "__ann__"), 90)
    lines = message_of(question).splitlines()
    assert lines[2] == r"Options: **\*yes\*** · **\@everyone** · **a b**"
    assert lines[3] == "To be answered within 90 seconds."
    assert lines[4].startswith(r"\<\@1\> \[x\]\(http\://evil\): <https://agents.example.org/decide/17?by=%3C%401%3E%0A")
    assert lines[5].startswith(r"\_\_ann\_\_: <https")


def test_a_link_that_no_message_holds_is_refused(here: None) -> None:
    with pytest.raises(Fail, match="Discord takes 2000"):
        message_of(Question(17, "Well?", ("yes", "no"), ("🦦" * 200,), None))
