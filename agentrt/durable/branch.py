"""Which step is which: an id never depends on timing.

It is the path of the task that runs the step, the step's name, and a counter of that name on that path. A task that an
attempt makes is a branch of the one that made it, numbered in the order of creation for each coroutine name, so that
branches that run side by side count apart and replay alike, and tasks that a library makes in between shift nothing.
What no id can make safe are tasks made in the order in which others happened to end: the fingerprint finds those.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol, cast

from agentrt.errors import UsageError

Factory = Callable[..., "asyncio.Future[Any]"]
_wait_for_makes_tasks = sys.version_info < (3, 12)


@dataclass(slots=True, eq=False)
class Branch:
    """A place in the tree of an attempt's tasks, and what was counted there."""

    path: str = ""
    counts: dict[str, int] = field(default_factory=dict)

    def step_id(self, name: str) -> str:
        return self.path + self._numbered(name)

    def child(self, name: str) -> Branch:
        """A branch of its own below this one: for a task, or for the inside of a step."""
        return Branch(f"{self.path}{self._numbered(name)}/")

    def _numbered(self, name: str) -> str:
        plain = name.replace("%", "%25").replace("/", "%2F")
        number = self.counts.get(plain, 0)
        self.counts[plain] = number + 1
        return f"{plain}#{number}"


class Branches:
    """The branches of one attempt, by task; `first` is the task of the attempt itself. Thousands of attempts wait at a time, so
    the usual one, without tasks of its own, costs next to nothing.
    """

    __slots__ = ("_first", "_first_branch", "_of", "_starting")

    def __init__(self, first: asyncio.Task[Any] | None) -> None:
        self._first = first
        self._first_branch = Branch()
        self._of: dict[asyncio.Task[Any], Branch] = {}  # of the tasks that it makes, while they run
        self._starting: list[
            Branch
        ] = []  # of tasks whose first part runs before their constructor returns (eager ones)

    def end(self) -> None:
        self._first = None

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """Those that the attempt made and that have not ended."""
        return list(self._of)

    def here(self) -> Branch:
        """The branch of the current task. Raises `UsageError` for a task that was made behind the factory's back."""
        task = asyncio.current_task()
        if task is None:
            raise UsageError("A step was called outside of a task. Call it in the agent, or in a task that it makes.")
        if task is self._first:
            return self._first_branch
        found = self._of.get(task)
        if found is None and self._starting:
            found = self._starting[-1]
            self._put(task, found)
        if found is None:
            raise UsageError(
                f"{task.get_name()} was made by a task factory that was set while the job ran, so its steps have no stable id."
                " Set it before the agents start: agentrt's own then uses it."
            )
        return found

    @contextmanager
    def inside(self, branch: Branch) -> Generator[None]:
        """Count in a branch of its own: what runs within a step shifts nothing outside, where a replay does not run it."""
        outer = self.here()
        self._move(branch)
        try:
            yield
        finally:
            self._move(outer)

    def make(self, inline: bool, name: str, construct: Callable[[], asyncio.Task[Any]]) -> asyncio.Task[Any]:
        """Construct a task of this attempt. `inline`: its maker waits for it at once, as for a call."""
        branch = self.here() if inline else self.here().child(name)
        self._starting.append(branch)
        try:
            task = construct()
        finally:
            self._starting.remove(branch)
        if task not in self._of and not task.done():
            self._put(task, branch)
        return task

    def _move(self, branch: Branch) -> None:
        task = asyncio.current_task()
        if task is self._first:
            self._first_branch = branch
        elif task is not None:
            self._of[task] = branch

    def _put(self, task: asyncio.Task[Any], branch: Branch) -> None:
        self._of[task] = branch
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._of.pop(task, None)


class HasBranches(Protocol):
    @property
    def branches(self) -> Branches: ...


class TaskFactory:
    """Gives each task that an attempt makes its branch; the tasks themselves are made as they were before."""

    def __init__(self, inner: Factory | None, attempt_of: Callable[[Any], HasBranches | None]) -> None:
        self._inner = inner
        self._attempt_of = attempt_of

    @classmethod
    def install(cls, loop: asyncio.AbstractEventLoop, attempt_of: Callable[[Any], HasBranches | None]) -> None:
        """Put it before the loop's factory, once. `attempt_of`: the attempt of a context (None: the current one)."""
        factory = loop.get_task_factory()
        if not isinstance(factory, cls):
            loop.set_task_factory(cls(factory, attempt_of))

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        attempt = self._attempt_of(options.get("context"))
        if attempt is None or asyncio.current_task() is None:
            return self._construct(loop, coro, options)
        inline = _made_by_wait_for(sys._getframe(1))
        return attempt.branches.make(inline, _name_of(coro), lambda: self._construct(loop, coro, options))

    def _construct(self, loop: asyncio.AbstractEventLoop, coro: Any, options: Mapping[str, Any]) -> asyncio.Task[Any]:
        if self._inner is None:
            return asyncio.Task(coro, loop=loop, **options)
        return cast("asyncio.Task[Any]", self._inner(loop, coro, **options))


def _name_of(coro: Coroutine[Any, Any, Any]) -> str:
    return getattr(coro, "__qualname__", None) or type(coro).__qualname__


def _made_by_wait_for(frame: FrameType | None) -> bool:
    """Python 3.11's wait_for runs its coroutine in a task, that of 3.12 does not; the ids must be the same on both."""
    if not _wait_for_makes_tasks:
        return False
    for _ in range(4):
        if frame is None:
            return False
        if frame.f_code is asyncio.wait_for.__code__:
            return True
        frame = frame.f_back
    return False
