"""The verbs of the clock on PostgreSQL: what makes room and what clears away."""

from __future__ import annotations

from agentrt.store import Pruned
from agentrt.store.postgres.connections import Connections

PruneMark = tuple[str, int, str]


class RetentionVerbs(Connections):
    async def tidy_leases(self) -> int:
        (row,) = await self._lanes.fetch_in_turn(self._sql["tidy_leases"])
        count: int = row[0]
        return count

    async def ensure_days(self, days: int) -> int:
        (row,) = await self._lanes.fetch_in_turn(self._sql["ensure_days"], days)
        made: int = row[0]
        return made

    async def prune(self, keep_s: float, limit: int, *, partly: bool, mark: PruneMark | None = None) -> Pruned | None:
        """One batch of what ended more than `keep_s` ago; `partly`: also of days that are not due as a whole.

        None: another process prunes at this moment.
        """
        rows = await self._rows("prune", keep_s, limit, partly, *(mark or (None, None, None)))
        if not rows:
            return None
        (row,) = rows
        further = row["at_partition"] is not None
        return Pruned(
            *(row["removed"], row["spared"], row["days"]),
            (row["at_partition"], row["at_id"], row["at_mode"]) if further else None,
        )
