"""Arrays on their way to the database: as text, which the statement casts.

Given a list, the driver asks of it and of each element whether it is a container, which costs more than all else it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import NoneType
from typing import Any

_numbers = frozenset([int, float, bool, NoneType])


def parameters(values: Iterable[Any]) -> list[Any]:
    """The values of a statement as the driver gets them."""
    return [array(value) if isinstance(value, (list, tuple)) else value for value in values]


def array(values: Sequence[Any]) -> str:
    """PostgreSQL's text of an array (manual, 8.15.6, "Array Input and Output Syntax") of texts, numbers, moments, or nulls."""
    kinds = set(map(type, values))
    if kinds <= _numbers:
        return "{" + str([*values])[1:-1].replace("None", "null") + "}"
    if kinds == {str}:
        return '{"' + '","'.join([value.replace("\\", "\\\\").replace('"', '\\"') for value in values]) + '"}'
    return "{" + ",".join(["null" if value is None else array([str(value)])[1:-1] for value in values]) + "}"
