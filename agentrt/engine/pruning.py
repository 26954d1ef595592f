"""Pruning: batch after batch until nothing that is due is left, with a pause as long as the batch took between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from agentrt.store import Store

batch_max = 1_000
whole_days_from_s = (
    2 * 86_400.0
)  # who keeps longer than this may wait until a whole day is due, which is dropped at once


@dataclass(frozen=True, slots=True)
class Progress:
    """What was done so far. `busy`: another process prunes, this one has not begun or has stopped."""

    jobs: int = 0
    days: int = 0
    busy: bool = False


async def prune(store: Store, keep_s: float, *, partly: bool | None = None) -> AsyncIterator[Progress]:
    """Remove what ended more than `keep_s` ago; yields after each batch, at least once. Raises what the store raises.

    A day is dropped as a whole when all of it is due. `partly`: what is due of a day that is not goes at once (None: when
    `keep_s` is below two days). Where another process prunes, this ends: that one does the work.
    """
    if partly is None:
        partly = keep_s < whole_days_from_s
    jobs = days = spared = 0
    mark: tuple[str, int, str] | None = None
    while True:
        began = time.monotonic()
        done = await store.prune(keep_s, batch_max, partly=partly, mark=mark)
        if done is None:
            yield Progress(jobs, days, busy=True)
            return
        jobs += done.removed + (spared if done.days else 0)
        days += done.days
        if done.mark is None or mark is None or done.mark[0] != mark[0] or done.mark[2] == "rows":
            spared = 0  # another partition, or this one is not going to be dropped
        spared += done.spared
        mark = done.mark
        yield Progress(jobs, days)
        if mark is None:
            return
        await asyncio.sleep(time.monotonic() - began)
