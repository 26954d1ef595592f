"""Arrays: what goes to the database as the text of an array comes back as the list that it was."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as values

from agentrt.store.postgres.arrays import array
from tests.support import Sql

texts = values.text(values.characters(exclude_characters="\x00", exclude_categories=["Cs"]))
awkward = values.sampled_from(['"', "\\", '\\"', "{}", "", " ", ",", "null", "NULL", '{"a": "b\\\\c"}', "\n"])
moments = values.datetimes(datetime(1, 1, 2), datetime(9998, 1, 1)).map(lambda moment: moment.replace(tzinfo=UTC))  # noqa: DTZ001 - gets its zone here
kinds: list[tuple[str, values.SearchStrategy[Any]]] = [
    ("text", texts | awkward),
    ("bigint", values.integers(-(2**63), 2**63 - 1)),
    ("float8", values.floats(allow_nan=False)),
    ("boolean", values.booleans()),
    ("timestamptz", moments),
]


@pytest.mark.parametrize(("kind", "elements"), kinds, ids=[kind for kind, _ in kinds])
async def test_an_array_comes_back_as_it_went(sql: Sql, kind: str, elements: values.SearchStrategy[Any]) -> None:
    lists: list[list[Any]] = []

    @given(values.lists(elements | values.none()) | values.lists(elements))
    def collect(examples: list[Any]) -> None:
        lists.append(examples)

    collect()
    assert [] in lists
    assert any(None in examples and examples != [None] for examples in lists)
    for examples in lists:
        assert await sql.value(f"select $1::text::{kind}[]", array(examples)) == examples


async def test_a_moment_of_another_zone_stays_the_same_moment(sql: Sql) -> None:
    moment = datetime.fromisoformat("2026-11-30T12:00:00.123456+05:30")
    (back,) = await sql.value("select $1::text::timestamptz[]", array([moment]))
    assert back - moment == timedelta()
