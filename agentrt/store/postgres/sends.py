"""The verb that stores messages on PostgreSQL: alone, many at once, or one with those that others send at the same time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

import asyncpg

from agentrt.errors import StoreBusy
from agentrt.model import NewJob, Sender, Sent
from agentrt.store.postgres.connections import Connections, Name
from agentrt.store.postgres.group import Group
from agentrt.store.postgres.rows import (
    back_in_place,
    locked_by,
    lost,
    mailbox_order,
    paid_by,
    sent,
    sent_columns,
    sent_values,
    shared_columns,
    step_columns,
)


class SendVerbs(Connections):
    @cached_property
    def _plain_sends(self) -> Group[NewJob, Sent]:
        return Group(self._send_plain, lambda job: len(job.payload))

    @cached_property
    def _keyed_sends(self) -> Group[NewJob, Sent | None]:
        return Group(self._send_where_free, lambda job: len(job.payload))

    @cached_property
    def _step_sends(self) -> Group[tuple[Sender, NewJob], list[Sent] | None]:
        return Group(self._send_shared, lambda item: len(item[1].payload))

    async def close_sends(self) -> None:
        """Wait for those that are under way."""
        await self._plain_sends.close()
        await self._keyed_sends.close()
        await self._step_sends.close()

    async def send(self, jobs: Sequence[NewJob], connection: Any = None, sender: Sender | None = None) -> list[Sent]:
        """Store messages, all or none; on the caller's `connection` they are part of its transaction.

        With a `sender` each is a step of that attempt. Raises `LeaseLost` when it no longer owns its job.
        Single messages that are sent at the same time share a statement: those from outside, and those of attempts.
        """
        names = locked_by(jobs, sender)
        single = len(jobs) == 1 and connection is None
        if sender is not None:
            if single and jobs[0].dedup is None and sender.takes is None:
                answers = await self._send_step(jobs[0], sender, names)
            else:
                answers = await self._send_steps(jobs, sender, connection, names)
            if not answers:
                raise lost(sender)
            return answers
        plain = all(job.dedup is None for job in jobs)
        if plain and single:
            return [await (self._send_keyed(jobs[0], names) if names else self._plain_sends.put(jobs[0]))]
        if plain and len(names) < 2:
            return await self._send_plain(jobs, connection, names)
        return await self._send_steps(jobs, None, connection, names)

    async def _send_plain(
        self, jobs: Sequence[NewJob], connection: Any = None, names: Collection[Name] = ()
    ) -> list[Sent]:
        if len(jobs) == 1:
            rows = await self._run("send_one", connection, sent_values(jobs[0]), names)
        else:
            rows = await self._run("send_plain", connection, sent_columns(jobs), names)
        return [Sent(row[0]) for row in rows]

    async def _send_keyed(self, job: NewJob, names: Collection[Name]) -> Sent:
        """Together with others, unless somebody holds the mailbox."""
        held = any(name in self._turns for name in names)
        answer = None if held else await self._keyed_sends.put(job)
        return answer or (await self._send_plain([job], None, names))[0]

    async def _send_where_free(self, jobs: Sequence[NewJob]) -> list[Sent | None]:
        """Store those whose mailboxes nobody holds, locked in the order in which all do; None for each of the others."""
        order = mailbox_order(jobs)
        rows = await self._run("send_where_free", None, sent_columns([jobs[n] for n in order]))
        return back_in_place(order, [None if row[0] is None else Sent(row[0]) for row in rows])

    async def _send_step(self, job: NewJob, sender: Sender, names: set[Name]) -> list[Sent]:
        """Together with those of other attempts; alone when it has to wait for what somebody holds. Empty: see `_send_steps`."""
        paid = paid_by(sender)  # all of a tree lock it, one after the other: that alone is no sign
        waits_for = names or {("attempt", str(sender.job_id), "")}
        held = any(name in self._turns for name in waits_for - paid) or any(map(self._held, paid))
        answers = None if held else await self._step_sends.put((sender, job))
        return await self._send_steps([job], sender, None, waits_for) if answers is None else answers

    async def _send_steps(
        self, jobs: Sequence[NewJob], sender: Sender | None, connection: Any = None, names: Collection[Name] = ()
    ) -> list[Sent]:
        """With all that a message can have. Empty: the sender has lost its job."""
        columns = sent_columns(jobs) | step_columns(jobs, sender)
        return [sent(row) for row in await self._run("send", connection, columns, names)]

    async def _send_shared(self, items: Sequence[tuple[Sender, NewJob]]) -> list[list[Sent] | None]:
        """A message of each of these attempts, as `_send_steps` answers; None for those that must go alone."""
        order = mailbox_order([job for _, job in items])
        try:
            rows = await self._run("send_shared", None, shared_columns([items[n] for n in order]))
        except StoreBusy:
            return [None for _ in items]
        return back_in_place(order, [_shared(row) for row in rows])


def _shared(row: asyncpg.Record) -> list[Sent] | None:
    if row["alone"]:
        return None
    return [] if row["id"] is None else [Sent(row["id"], row["existed"])]
