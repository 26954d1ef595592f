"""What workers write and the comparison reads while they run: a file in shared memory, a slot per job.

Only the standard library: this module runs in every peer's environment. A slot is written by the process that runs its job
alone. The counters, for jobs that share a slot, are one per process, so that forked children lose no count.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

counters = 4096  # the living processes of one worker have different numbers modulo this


def now() -> float:
    """The monotonic clock, which is one for all processes of a machine."""
    return time.monotonic()


class Probe:
    """When each job started and ended, how often, and in which worker."""

    def __init__(self, path: Path, worker: int = 0, *, slots: int | None = None) -> None:
        """Open the file, or make it with so many slots."""
        if slots is not None:
            with path.open("wb") as file:
                file.truncate(8 * counters + (8 + 8 + 3) * slots)
        self.path, self.worker = path, worker
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        whole = memoryview(self._memory)
        self.slots = (len(whole) - 8 * counters) // (8 + 8 + 3)
        numbers = 8 * counters
        times = numbers + 16 * self.slots
        self._counters = whole[:numbers].cast("Q")
        self._times = whole[numbers:times].cast("d")  # the starts, then the ends
        self._starts, self._ends, self._workers = (
            whole[times + part * self.slots : times + (part + 1) * self.slots] for part in range(3)
        )

    # ------------------------------------------------------------------ written by workers

    def start(self, slot: int) -> None:
        if not self._starts[slot]:
            self._times[slot] = now()
        self._starts[slot] = min(self._starts[slot] + 1, 255)
        self._workers[slot] = self.worker

    def end(self, slot: int) -> None:
        self._times[self.slots + slot] = now()
        self._ends[slot] = min(self._ends[slot] + 1, 255)
        self._counters[os.getpid() % counters] += 1

    # ------------------------------------------------------------------ read by the comparison

    def started(self) -> int:
        """How many slots have a start."""
        return self.slots - bytes(self._starts).count(0)

    def ended(self, first: int = 0, count: int | None = None) -> int:
        """How many slots have an end, of all or of `count` from `first`."""
        part = bytes(self._ends[first : None if count is None else first + count])
        return len(part) - part.count(0)

    def hits(self) -> int:
        """How many ends there were, of jobs that share a slot too."""
        return sum(self._counters)

    def first_start(self) -> float:
        return min(when for when in self._times[: self.slots] if when)

    def started_at(self, slot: int) -> float:
        return self._times[slot]

    def ended_at(self, slot: int) -> float:
        return self._times[self.slots + slot]

    def starts(self, slot: int) -> int:
        return self._starts[slot]

    def again(self, count: int) -> int:
        """How many starts of the first `count` jobs were more than the one that is due."""
        return sum(starts - 1 for starts in self._starts[:count] if starts > 1)

    def running_in(self, worker: int, count: int) -> int:
        """How many of the first `count` jobs this worker has started and not ended."""
        return sum(
            1 for slot in range(count) if self._starts[slot] and not self._ends[slot] and self._workers[slot] == worker
        )

    def reset(self) -> None:
        self._memory[:] = bytes(len(self._memory))
