"""The schema that a run of `agentrt bench` has for itself: made when its name is free, dropped at the end.

What a killed run left is taken over. Nothing else is ever dropped: a schema that no run made, that holds unfinished jobs, or
tables that no run made, is refused, and so is one that another run has.
"""

from __future__ import annotations

from agentrt.errors import StoreError, StoreUnavailable
from agentrt.store.postgres.by_hand.floors import tables
from agentrt.store.postgres.by_hand.link import Link

_made_by = "Made by 'agentrt bench', which drops it. Its tables: "
_other = "Nothing was changed. Give a name that is free, such as: --schema agentrt_bench_2"
_lock = "select pg_try_advisory_lock(hashtextextended('agentrt bench', hashtextextended($1, 0)))"
_look = """
select obj_description(n.oid, 'pg_namespace') as mark,
       array(select relname::text from pg_class
              where relnamespace = n.oid and relkind in ('r', 'p', 'f', 'm') and not relispartition order by relname) as tables
  from pg_namespace n where n.nspname = $1
"""
_unfinished = "select count(*) from agentrt.jobs"
_mark = "comment on schema {schema} is {text}"


class RunSchema(Link):
    """Holds the schema's name against other runs for as long as its connection lives."""

    async def take(self) -> None:
        """Make the schema, empty. Raises `StoreError`: it is not free; the text says why and what to do."""
        if not await self.value(_lock, self.schema):
            raise StoreError(
                f"Another 'agentrt bench' runs in schema {self.schema!r} of this database. Wait for its end, or give another"
                " name, such as: --schema agentrt_bench_2"
            )
        if found := await self.rows(_look, self.schema):
            (row,) = found
            await self._require_left_over(row["mark"] or "", row["tables"])
            await self.drop()
        try:
            await self.script(f'create schema "{self.schema}"')
        except StoreUnavailable:
            raise
        except StoreError as error:
            raise StoreError(
                f"The schema {self.schema!r} cannot be made ({error}). Grant this user the right (grant create on database …"
                " to …), or name another database or user with --database."
            ) from None

    async def add_tables(self) -> None:
        """Those of the floors. From now on the schema says who made it."""
        await self.script(tables)
        ((_, names),) = await self.rows(_look, self.schema)
        text = _made_by + " ".join(names)
        await self.script(_mark.format(schema=f'"{self.schema}"', text="'" + text.replace("'", "''") + "'"))

    async def drop(self) -> None:
        await self.script(f'drop schema if exists "{self.schema}" cascade')

    async def _require_left_over(self, mark: str, names: list[str]) -> None:
        """Refuse a schema that is not the rest of a killed run."""
        unfinished = await self.value(_unfinished) if {"jobs", "migrations"} <= set(names) else 0
        if unfinished:
            raise StoreError(
                f"Schema {self.schema!r} holds {unfinished} unfinished job{'s' * (unfinished > 1)}, and a measurement drops its"
                f' schema at the end. {_other}. If a killed measurement left them: drop schema "{self.schema}" cascade'
            )
        if not mark.startswith(_made_by):
            raise StoreError(
                f"Schema {self.schema!r} was not made by 'agentrt bench', which drops its schema at the end. {_other}"
            )
        strange = sorted(set(names) - set(mark.removeprefix(_made_by).split()))
        if strange:
            raise StoreError(
                f"Schema {self.schema!r} holds what no measurement made ({', '.join(strange[:5])}). {_other}"
            )
