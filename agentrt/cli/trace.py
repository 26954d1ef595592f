"""`agentrt trace`: the tree of a conversation, from the job that began it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal

import click
from rich.text import Text

from agentrt.cli import render
from agentrt.cli.common import JobId, client_of, database_options, in_loop, json_option
from agentrt.cli.waits import step_styles, tries_of
from agentrt.durable.wait import missing
from agentrt.model import JobRow, State

_jobs_max = 10_000
_steps_max = 100_000
_steps_shown_max = 20  # of one job; --json has them all
_error_chars_max = 200


@dataclass(slots=True)
class _Tree:
    """The jobs by id, and below which other each is: those whose parent is gone come first, as does the root."""

    jobs: dict[int, JobRow]
    steps: dict[int, list[JobRow]]
    below: dict[int | None, list[int]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        for job_id, job in self.jobs.items():
            parent = job["parent"]
            self.below[parent if parent in self.jobs and parent < job_id else None].append(job_id)

    def spent(self) -> tuple[Decimal, int]:
        usd = Decimal(sum(job["usd"] or 0 for job in self.jobs.values()))
        return usd, sum(job["tokens"] or 0 for job in self.jobs.values())


@click.command()
@click.argument("job_id", type=JobId(), metavar="ID")
@database_options
@json_option
def trace(job_id: int, database: str | None, schema: str, as_json: bool) -> None:
    """Show the conversation that a job belongs to, as a tree: states, waits, run times, steps and what was spent.

    A job waited from its sending to its first run, and ran from then to its end, what it waited for meanwhile included.
    """

    async def look() -> tuple[list[JobRow], list[JobRow]]:
        async with client_of(database, schema) as client:
            jobs, steps = await client.store.trace(job_id, _jobs_max + 1, _steps_max)
            if not jobs:
                raise await missing(client.store, job_id)
            return jobs, steps

    jobs, steps = in_loop(look())
    by_job: dict[int, list[JobRow]] = defaultdict(list)
    for step in steps:
        by_job[step["job_id"]].append(step)
    tree = _Tree({job["id"]: job for job in jobs[:_jobs_max]}, by_job)
    _note_began(tree)
    cut = len(jobs) > _jobs_max or len(steps) == _steps_max
    if as_json:
        usd, tokens = tree.spent()
        about = {"asked": job_id, "root": jobs[0]["root"] or jobs[0]["id"], "cut": cut, "jobs": len(tree.jobs)}
        render.print_json(about | {"usd": usd, "tokens": tokens, "tree": _nested(tree)})
    else:
        render.print_lines(_lines(tree, job_id))
    if cut:
        render.complain(f"the tree is cut: its oldest {_jobs_max:,} jobs, and {_steps_max:,} steps of them.")


def _note_began(tree: _Tree) -> None:
    """The earliest sign of a run that is kept, what a job sent included; a later claim takes the place of the first."""
    for job in tree.jobs.values():
        signs = [tree.jobs[child]["created_at"] for child in tree.below[job["id"]]]
        job["began_at"] = min([*signs, *([job["began_at"]] if job["began_at"] is not None else [])], default=None)


def _times(job: JobRow) -> tuple[float, float | None]:
    """How many seconds a job waited, and ran (None: it never did)."""
    end = job["finished_at"] or job["now"]
    if job["began_at"] is None:
        return render.seconds(job["created_at"], end), None
    return render.seconds(job["created_at"], job["began_at"]), render.seconds(job["began_at"], end)


# ------------------------------------------------------------------ JSON


def _nested(tree: _Tree) -> list[dict[str, object]]:
    """The jobs for JSON, each with those below it."""
    fields = {job_id: _fields(job, tree.steps[job_id]) for job_id, job in tree.jobs.items()}
    for job_id, values in fields.items():
        values["children"] = [fields[child] for child in tree.below[job_id]]
    return [fields[job_id] for job_id in tree.below[None]]


def _fields(job: JobRow, steps: list[JobRow]) -> dict[str, object]:
    names = ("id", "agent", "key", "state", "parent", "attempt", "max_attempts", "reason", "created_at", "finished_at")
    waited_s, ran_s = _times(job)
    budget = {name: job[name] for name in ("usd_max", "tokens_max", "jobs_max")}
    budget |= {name: job[f"budget_{name}"] for name in ("usd", "tokens", "jobs")}
    return {name: job[name] for name in names} | {
        "error": _error(job),
        "waited_s": waited_s,
        "ran_s": ran_s,
        "usd": job["usd"] or 0,
        "tokens": job["tokens"] or 0,
        "budget": budget if job["has_budget"] else None,
        "steps": render.rows_without(steps, "job_id"),
    }


# ------------------------------------------------------------------ drawing


def _lines(tree: _Tree, asked: int) -> Iterator[Text]:
    """A job's line, its steps, its error, then what is below it. Without recursion: plain SQL may make any depth."""
    stack = [(job_id, "", "") for job_id in reversed(tree.below[None])]
    while stack:
        job_id, before, inner = stack.pop()
        job, below = tree.jobs[job_id], tree.below[job_id]
        yield Text.assemble((before, "bright_black"), _job_line(job, asked=job_id == asked))
        beside = f"{inner}{'│' if below else ' '}    "
        for text in _details(job, tree.steps[job_id]):
            yield Text.assemble((beside, "bright_black"), text)
        for child in reversed(below):
            last = child == below[-1]
            stack.append((child, f"{inner}{'└─ ' if last else '├─ '}", f"{inner}{'   ' if last else '│  '}"))
    spent = render.spent(*tree.spent()) or "nothing"
    count = f"{len(tree.jobs):,} job{'s' * (len(tree.jobs) > 1)}"
    yield Text(f"{count}, spent: {spent}", style="bright_black")


def _job_line(job: JobRow, *, asked: bool) -> Text:
    key = f"[{job['key']!r}]" if job["key"] is not None else ""
    waited_s, ran_s = _times(job)
    over = job["finished_at"] is not None
    if ran_s is None:
        parts = [f"{'waited' if over else 'waits'} {render.duration(waited_s)}", *(["never ran"] if over else [])]
    else:
        parts = [f"waited {render.duration(waited_s)}", f"{'ran' if over else 'runs'} {render.duration(ran_s)}"]
    if job["attempt"] > 1:
        parts.append(f"attempt {render.attempts(job | {'attempt_count': job['attempt']}, ' of ')}")
    if spent := render.spent(job["usd"], job["tokens"]):
        parts.append(spent)
    if budget := _budget(job):
        parts.append(budget)
    name = render.plain(f"{job['agent']}{key}")
    style = "bold reverse" if asked else "bold"
    return Text.assemble((f"{job['id']} {name}", style), "  ", render.state_cell(job["state"]), f"  {', '.join(parts)}")


def _budget(job: JobRow) -> str:
    """What the tree below a job has used of its budget; empty when it has none."""
    used = []
    if job["usd_max"] is not None:
        used.append(f"{job['budget_usd'].normalize():f} of {job['usd_max'].normalize():f} USD")
    used += [
        f"{job[f'budget_{what}']:,} of {job[f'{what}_max']:,} {what}"
        for what in ("tokens", "jobs")
        if job[f"{what}_max"] is not None
    ]
    return f"budget: {', '.join(used)}" if used else ""


def _details(job: JobRow, steps: list[JobRow]) -> Iterator[Text]:
    if steps:
        shown = [_step(step) for step in steps[:_steps_shown_max]]
        if len(steps) > _steps_shown_max:
            shown.append(Text(f"{len(steps) - _steps_shown_max:,} more", style="bright_black"))
        yield Text.assemble(("steps ", "bright_black"), Text(", ").join(shown))
    if error := _error(job):
        text = render.plain(error)
        text = text if len(text) <= _error_chars_max else f"{text[:_error_chars_max]}…"
        yield Text.assemble((f"{job['reason'] or 'last error'}: ", "red"), text)


def _error(job: JobRow) -> str | None:
    error: str | None = job["last_error"]
    return error if job["state"] != State.succeeded else None


def _step(step: JobRow) -> Text:
    """`fetch#0`, `fetch#0 (failed, 3 tries)`, `ask:critic#0 (job 57, waits)`."""
    about = [f"job {step['child']}"] if step["child"] is not None else []
    about += [step["state"]] if step["state"] != "done" else []
    tries = tries_of(step)
    about += [f"{tries} tries"] if tries > 1 else []
    text = render.plain(step["step"]) + (f" ({', '.join(about)})" if about else "")
    return Text(text, style="" if step["state"] == "done" else step_styles[step["state"]])
