"""What the server says of a run."""

from __future__ import annotations

from dataclasses import dataclass

from agentrt.errors import StoreError, StoreUnavailable
from agentrt.store.postgres.by_hand.link import Link

_unfinished = "select count(*) from agentrt.jobs"
_ended = """
select count(*) as jobs, count(*) filter (where state = 'succeeded') as succeeded,
       coalesce(extract(epoch from max(finished_at) - min(claimed_at)), 0)::float8 as seconds
  from agentrt.history
"""
_wal = "select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint"
_backends = """
select pid from pg_stat_activity
 where datname = current_database() and application_name = current_setting('application_name') and backend_type = 'client backend'
"""
_changed_at = "select extract(epoch from state_change)::float8 from pg_stat_activity where pid = $1"


@dataclass(frozen=True, slots=True)
class Ended:
    """The jobs that have ended, and the seconds from the first start to the last end."""

    jobs: int
    succeeded: int
    seconds: float


class Looks(Link):
    """Each method is one query."""

    async def unfinished(self) -> int:
        count: int = await self.value(_unfinished)
        return count

    async def ended(self) -> Ended:
        (row,) = await self.rows(_ended)
        return Ended(row["jobs"], row["succeeded"], row["seconds"])

    async def wal_bytes(self) -> int | None:
        """The server's position in its log, which grows with what anybody writes. None: this user may not see it."""
        try:
            position: int = await self.value(_wal)
        except StoreUnavailable:
            raise
        except StoreError:
            return None
        return position

    async def backends(self) -> set[int]:
        """The server's processes behind agentrt's connections to this database."""
        return {row["pid"] for row in await self.rows(_backends)}

    async def changed_at(self, pid: int) -> float:
        """When a connection last began or ended a statement, in seconds of the server's clock."""
        moment: float = await self.value(_changed_at, pid)
        return moment
