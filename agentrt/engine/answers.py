"""The answers: hands what running attempts wait for (replies, decisions) to them when the database says that it is there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from agentrt.context import Attempt
from agentrt.store import Store

look_again_s = 30.0  # behind lost hints
look_max = 1_000


class Answers:
    """One loop. `hear` names a job that has an answer; `ring` asks to look for one; `ring_all` says that hints may be lost."""

    def __init__(self, store: Store, attempts: Mapping[int, Attempt]) -> None:
        self._store = store
        self._attempts = attempts
        self._rung: set[int] = set()
        self._bell = asyncio.Event()

    def hear(self, job_id: int) -> None:
        """An answer may come before the attempt waits for it: it then looks itself."""
        if job_id in self._attempts:
            self._attempts[job_id].answers_heard += 1
            self.ring(job_id)

    def ring(self, job_id: int) -> None:
        if job_id in self._attempts:
            self._rung.add(job_id)
            self._bell.set()

    def ring_all(self) -> None:
        for attempt in self._attempts.values():
            attempt.answers_heard += 1
        self._rung.update(job_id for job_id, attempt in self._attempts.items() if attempt.waits)
        if self._rung:
            self._bell.set()

    async def run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(look_again_s):
                    await self._bell.wait()
            except TimeoutError:
                self.ring_all()
            self._bell.clear()
            while self._rung:
                await self._look([self._rung.pop() for _ in range(min(look_max, len(self._rung)))])

    async def _look(self, job_ids: list[int]) -> None:
        waits = [
            (job_id, step)
            for job_id in job_ids
            if (attempt := self._attempts.get(job_id)) is not None
            for step in list(attempt.waits)
        ]
        if not waits:
            return
        try:
            answers = await self._store.answers(waits)
        except BaseException:
            self._rung.update(job_ids)  # what it would have brought is still there
            self._bell.set()
            raise
        for job_id, step, state in answers:
            if (attempt := self._attempts.get(job_id)) is not None:
                attempt.answered(step, state)
