"""A process that asks questions and serves their page, and what a person does there."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from agentrt import to
from agentrt.durable.decision import signature
from tests.conftest import Start
from tests.support import Program, Sql, eventually

secret = "a secret of more than sixteen characters"
source = """
import agentrt
from agentrt import agent

@agent
async def asker(question: str, options: list[str], who: list[str] | None = None, within_s: float | None = None,
                default: str | None = None) -> dict:
    try:
        decision = await agentrt.decide(question, options, who=who, within_s=within_s, default=default)
    except agentrt.DecisionExpired:
        return {"option": None, "by": None}
    return {"option": decision.option, "by": decision.by}
"""


@dataclass
class Page:
    """An answer of the door, read to its end."""

    status: int
    text: str
    headers: dict[str, str]

    @property
    def outcome(self) -> str:
        found = re.search(r'class="outcome[^"]*">(.*?)</p>', self.text)
        return found[1] if found else ""

    @property
    def notice(self) -> str:
        found = re.search(r'class="notice">(.*?)</p>', self.text)
        return found[1] if found else ""


@dataclass
class Desk:
    """What the tests do at the door of a process."""

    url: str
    session: aiohttp.ClientSession
    sql: Sql
    program: Program

    async def ask(
        self, text: str = "Publish?", options: tuple[str, ...] = ("yes", "no"), **more: Any
    ) -> tuple[int, int]:
        """A job that asks; its id, and that of its question."""
        job = await to("asker").send(question=text, options=list(options), **more)
        return job.id, await eventually(
            lambda: self.sql.value("select id from agentrt.decisions where job_id = $1", job.id)
        )

    def link(self, decision_id: int, by: str) -> str:
        return f"{self.url}decide/{decision_id}?by={quote(by, safe='')}&signature={signature(decision_id, by)}"

    async def get(self, url: str) -> Page:
        return await self._page("GET", url)

    async def post(self, url: str, **form: str) -> Page:
        return await self._page("POST", url, data=form)

    async def _page(self, method: str, url: str, **options: Any) -> Page:
        async with self.session.request(method, URL(url, encoded=True), allow_redirects=False, **options) as answer:
            return Page(answer.status, await answer.text(), {k.lower(): v for k, v in answer.headers.items()})

    async def question(self, decision_id: int) -> dict[str, Any]:
        (row,) = await self.sql.rows("select * from agentrt.decisions where id = $1", decision_id)
        return row


@asynccontextmanager
async def desk_of(start: Start, sql: Sql, *options: str, **environ: str) -> AsyncIterator[Desk]:
    given = {"AGENTRT_SECRET": secret, **environ}
    program = start("run", "agents.py", "--http", "127.0.0.1:0", *options, source=source, environ=given)
    (serving,) = await program.until("http.serving")
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
        yield Desk(serving["url"], session, sql, program)
