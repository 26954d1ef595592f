"""What a keyed agent keeps between its messages: loaded with the claim, saved by the statement that completes the job."""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass
from typing import Any, TypeVar, cast

from pydantic import BaseModel, TypeAdapter

from agentrt import codec
from agentrt.context import Attempt, running
from agentrt.errors import UsageError

T = TypeVar("T")


@dataclass(slots=True)
class _Held:
    value: Any
    kind: Any
    adapter: codec.Adapter
    stored: str | None


def state(kind: type[T]) -> T:
    """What this key keeps, as a `kind` (a dataclass, a pydantic model, `dict` or `list`); change it in place.

    A key without any begins with `kind()`. It is saved when the job succeeds, and only then; a rerun begins with what the job
    began with. Outside of a job this is `kind()`.

    Raises:
        UsageError: the job has no key, the type cannot be changed in place, or it was asked for as another type before.
        PayloadInvalid: what is stored does not fit `kind`.
    """
    attempt = running.get()
    if attempt is None:
        return _new(kind)
    if attempt.job.key is None:
        raise UsageError(f"agentrt.state() needs a key: send to {attempt.job.agent}['…'].")
    held: _Held | None = attempt.key_state
    if held is None:
        adapter: codec.Adapter = TypeAdapter(kind)
        stored = attempt.job.key_state
        value = _new(kind) if stored is None else codec.decode(stored, adapter, at=f"state of {attempt.job.key!r}")
        held = attempt.key_state = _Held(value, kind, adapter, stored)
    if held.kind is not kind:
        raise UsageError(f"The state of this key was asked for as {held.kind!r} before, now as {kind!r}.")
    return cast("T", held.value)


def changed_state(attempt: Attempt) -> str | None:
    """What must be saved; None: nothing was changed. Raises `PayloadInvalid`."""
    held: _Held | None = attempt.key_state
    if held is None:
        return None
    text = codec.encode(held.value, held.adapter, at=f"state of {attempt.job.key!r}", bytes_max=attempt.value_bytes_max)
    return None if text.decode() == held.stored else text.decode()


def _new(kind: type[T]) -> T:
    own = isinstance(kind, type) and (issubclass(kind, BaseModel) or is_dataclass(kind))
    if not own and kind not in (dict, list) and getattr(kind, "__origin__", None) not in (dict, list):
        raise UsageError(
            f"agentrt.state() takes a dataclass, a pydantic model, dict or list, which change in place; not {kind!r}."
        )
    try:
        return kind()
    except Exception as error:
        raise UsageError(
            f"agentrt.state({kind!r}) cannot make the first one: {error}. Give every field a default."
        ) from None
