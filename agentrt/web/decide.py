"""The page behind the signed link of a question: the question, and a button for each option. It needs no script.

A GET changes nothing, so that programs which look at links before people do answer nothing; one POST answers. Whoever has
the link can answer in the name that it carries. Without a good signature not a word of the question is told.
"""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from urllib.parse import parse_qs

from aiohttp import web

from agentrt.cli.render import block, duration, moment, plain
from agentrt.client import Client
from agentrt.durable.decision import signature
from agentrt.errors import ConfigError, DecisionRefused, StoreError, UsageError
from agentrt.limits import require_name
from agentrt.model import JobRow
from agentrt.web.looks import Looks, seconds_between
from agentrt.web.page import base_style, policy_hash

_id_rule = re.compile(r"[1-9][0-9]{0,17}")
_form = "application/x-www-form-urlencoded"

_style = (
    base_style
    + """
main { max-width: 760px; margin-top: 16px; }
header { max-width: 760px; }
.card { padding: 18px 20px; }
.question { margin: 0 0 16px; font-size: 17px; white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 3px 14px; margin: 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; unicode-bidi: isolate; }
form { margin-top: 18px; border-top: 1px solid var(--line); padding-top: 14px; }
form p { margin: 0 0 10px; overflow-wrap: anywhere; }
button { font: inherit; font-weight: 550; color: var(--ink); background: var(--ground); border: 1px solid var(--faint);
  border-radius: 8px; padding: 9px 18px; margin: 0 8px 8px 0; min-width: 84px; max-width: 100%; overflow-wrap: anywhere;
  unicode-bidi: isolate; cursor: pointer; }
button:hover, button:focus-visible { border-color: var(--ready); color: var(--ready); }
.outcome { margin: 18px 0 0; border-top: 1px solid var(--line); padding-top: 14px; font-weight: 600; color: var(--c);
  overflow-wrap: anywhere; }
.notice { margin: 0; overflow-wrap: anywhere; }
"""
)

_policy = (
    f"default-src 'none'; style-src {policy_hash(_style)}; img-src data:; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'"
)

_template = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>agentrt · {title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<header><h1>agentrt</h1><span class="pill {colour}">{word}</span><span class="soft right">{title}</span></header>
<main><div class="card">
{inside}
</div></main>
</body>
</html>
"""


@dataclass(frozen=True, slots=True)
class _Link:
    """What a good link says: which question, and in whose name it is answered."""

    id: int
    by: str


@dataclass(frozen=True, slots=True)
class _Standing:
    """How a question stands: a word, its colour, and a sentence ("" while it is open)."""

    word: str
    colour: str
    text: str = ""


class _Refused(Exception):
    """The request is answered without the question."""

    def __init__(self, status: int, word: str, text: str) -> None:
        super().__init__(text)
        self.response = _page(status, _Standing(word, "bad"), "a question", f'<p class="notice">{_text(text)}</p>')


class DecisionDoor:
    """`/decide/{id}?by=…&signature=…`."""

    def __init__(self, looks: Looks) -> None:
        self._looks = looks

    async def show(self, request: web.Request) -> web.Response:
        """The question and how it stands. Changes nothing."""
        try:
            link = _link_of(request)
            return _question_page(200, await self._question(link), link)
        except _Refused as refused:
            return refused.response

    async def answer(self, request: web.Request) -> web.Response:
        """Answer with the option of the form; the first valid answer wins, whichever door it comes through."""
        try:
            link = _link_of(request)
            row = await self._question(link)
            if _standing(row).text:
                return _question_page(409, row, link)
            option = await _option_of(request, row["options"])
            refusal = await self._decide(link, option)
            if refusal is None:
                return _question_page(
                    200, row, link, _Standing("recorded", "good", f"recorded: {option}, by {link.by}")
                )
            row = await self._question(link)  # somebody was faster since the look above
            standing = _standing(row)
            return _question_page(409, row, link, standing if standing.text else _Standing("refused", "bad", refusal))
        except _Refused as refused:
            return refused.response

    async def _question(self, link: _Link) -> JobRow:
        """Raises `_Refused`: there is none, or it is not for who the link is for."""
        try:
            rows = await self._looks.look(lambda store: store.decisions(link.id))
        except StoreError:
            raise _Refused(
                503, "no database", "The database does not answer. Nothing was changed; try again."
            ) from None
        if not rows:
            raise _Refused(404, "unknown", "There is no such question. It was removed some time after its end.")
        (row,) = rows
        if row["who"] is not None and link.by not in row["who"]:
            raise _Refused(403, "refused", f"{link.by} may not answer this question.")
        return row

    async def _decide(self, link: _Link, option: str) -> str | None:
        """Why the answer was not taken; None: it was. Raises `_Refused` when the database does not say."""
        try:
            await self._looks.look(lambda store: Client(store).decide(link.id, option, by=link.by))
        except DecisionRefused as refusal:
            return str(refusal)
        except StoreError:
            text = "The database did not say whether the answer was recorded. Open the link again to see."
            raise _Refused(503, "no database", text) from None
        return None


# ------------------------------------------------------------------ what comes in


def _link_of(request: web.Request) -> _Link:
    """Raises `_Refused` for whatever is not a link that was made with our secret."""
    bad = _Refused(403, "refused", "This link is not valid. Ask for it again, and take care to copy all of it.")
    number, by, given = request.match_info["id"], request.query.getall("by", []), request.query.getall("signature", [])
    if len(by) != 1 or len(given) != 1 or not _id_rule.fullmatch(number):
        raise bad
    try:
        require_name("by", by[0])
        expected = signature(int(number), by[0])
    except ConfigError as error:
        text = (
            f"This supervisor cannot check links. {error} Set it where 'agentrt run --http' runs, and start that again."
        )
        raise _Refused(503, "not set up", text) from None
    except UsageError:
        raise bad from None
    if not hmac.compare_digest(given[0].encode("utf-8", "replace"), expected.encode()):
        raise bad
    return _Link(int(number), by[0])


async def _option_of(request: web.Request, options: list[str]) -> str:
    """The option that was chosen. Raises `_Refused` for anything else."""
    chosen: list[str] = []
    if request.content_type == _form:
        body = (await request.read()).decode("utf-8", "replace")
        chosen = parse_qs(body, keep_blank_values=True).get("option", [])
    if len(chosen) == 1:
        for option in options:
            if _as_sent(option) == _as_sent(chosen[0]):
                return option
    raise _Refused(400, "refused", "That is none of the options. Nothing was recorded; open the link again.")


def _as_sent(option: str) -> str:
    """As a form sends it: line ends in it are made all alike (https://url.spec.whatwg.org/#concept-urlencoded-serializer)."""
    return option.replace("\r\n", "\n").replace("\r", "\n")


# ------------------------------------------------------------------ what is shown


def _standing(row: JobRow) -> _Standing:
    if row["answer"] is not None:
        text = f"already decided by {row['answered_by']}: {row['answer']} ({moment(row['answered_at'])})"
        return _Standing("decided", "good", text)
    if row["expired"]:
        default = f"; the answer is {row['fallback']}" if row["fallback"] is not None else ""
        return _Standing("expired", "cancelled", f"expired: nobody answered in time{default}")
    if row["agent"] is None:
        return _Standing("closed", "cancelled", "closed: the job that asked has ended")
    return _Standing("open", "ready")


def _question_page(status: int, row: JobRow, link: _Link, standing: _Standing | None = None) -> web.Response:
    standing = standing or _standing(row)
    facts = {
        "asked by": f"{row['agent']}, job {row['job_id']}" if row["agent"] is not None else f"job {row['job_id']}",
        "may answer": ", ".join(row["who"]) if row["who"] is not None else "anybody who has a link",
    }
    if standing.word in ("open", "expired"):
        facts["expires" if standing.word == "open" else "expired"] = _expiry(row)
    about = "".join(f"<dt>{name}<dd>{_text(value)}" for name, value in facts.items())
    end = f'<p class="outcome {standing.colour}">{_text(standing.text)}</p>' if standing.text else _buttons(row, link)
    inside = f'<p class="question">{escape(block(row["question"]))}</p>\n<dl>{about}</dl>\n{end}'
    return _page(status, standing, f"question {row['id']}", inside)


def _expiry(row: JobRow) -> str:
    left_s = seconds_between(datetime.now(UTC), row["expires"])
    if left_s is None:
        return "never"
    if row["expired"]:
        return moment(row["expires"])
    default = f"; the answer is then {row['fallback']}" if row["fallback"] is not None else ""
    return f"{moment(row['expires'])}, in {duration(left_s)}{default}"


def _buttons(row: JobRow, link: _Link) -> str:
    buttons = "\n".join(
        f'<button name="option" value="{_value(option)}">{_text(option)}</button>' for option in row["options"]
    )
    note = f"You answer as <b>{_text(link.by)}</b>. The first answer counts, and cannot be taken back."
    return f'<form method="post"><p class="soft">{note}</p>\n{buttons}\n</form>'


def _text(text: str) -> str:
    return escape(plain(text))


def _value(text: str) -> str:
    """Line ends as references: read as they are, some would become others."""
    return escape(text).replace("\r", "&#13;").replace("\n", "&#10;")


def _page(status: int, standing: _Standing, title: str, inside: str) -> web.Response:
    parts = {"title": title, "style": _style, "colour": standing.colour, "word": standing.word, "inside": inside}
    return web.Response(
        status=status,
        text=_template.format(**parts),
        content_type="text/html",
        headers={"Content-Security-Policy": _policy},
    )
