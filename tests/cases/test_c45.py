"""C45, payload: types change on the way through JSON, so that a message handled directly and a queued one differ.

Each value either comes back equal and of the same type, all the way down, or is refused when it is sent.
"""

from __future__ import annotations

import json
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, TypeAdapter

import agentrt
from agentrt import PayloadInvalid, agent, codec
from tests.cases.doors import failed_at_once, insert, refused_by_the_command_line
from tests.conftest import Start, supervising
from tests.support import Sql

pytestmark = pytest.mark.case


class Color(Enum):
    red = "r"


class Level(IntEnum):
    low = 1


class Word(StrEnum):
    yes = "yes"


class Name(str):
    __slots__ = ()


class Count(int): ...


Pair = namedtuple("Pair", "a b")


@dataclass
class Order:
    amount: Decimal
    at: datetime
    lines: list[tuple[int, str]]


class Loose(BaseModel):
    inside: Any


@dataclass
class LooseData:
    inside: Any


moment = datetime(2026, 11, 29, 12, 30, 15, 123456, tzinfo=timezone(timedelta(hours=5, minutes=30)))
values: list[Any] = [
    {1: "a"},
    {True: "a"},
    {None: "a"},
    {1.5: "a"},
    (1, 2),
    [(1, 2)],
    {"a": (1,)},
    moment,
    moment.replace(tzinfo=None),
    moment.date(),
    moment.time(),
    timedelta(days=-1, microseconds=1),
    Decimal("1.10"),
    Decimal("1E+5"),
    b"ab",
    b"\xff\x00",
    bytearray(b"ab"),
    Color.red,
    Level.low,
    Word.yes,
    {1, 2},
    {True},
    {Word.yes},
    {Level.low},
    {(1, True)},
    frozenset({1}),
    frozenset({frozenset({Name("x")})}),
    UUID(int=7),
    Name("x"),
    Count(1),
    Pair(1, 2),
    OrderedDict(b=1, a=2),
    Path("/a"),
    range(3),
    1j,
    object(),
    Order(Decimal("1.10"), moment, [(1, "a")]),
    Loose(inside=(1,)),
    LooseData(inside={1: 2}),
]
loose_values: list[Any] = [
    Word.yes,
    Level.low,
    Name("x"),
    Count(1),
    (1,),
    {1: 2},
    Decimal(1),
    moment,
    {1},
    UUID(int=7),
    b"a",
    True,
    1,
    1.0,
    "x",
    None,
]
schemas: list[tuple[Any, Any]] = [
    (dict[int, str], {1: "a"}),
    (tuple[int, int], (1, 2)),
    (tuple[int, ...], (1, 2, 3)),
    (datetime, moment),
    (datetime, moment.replace(tzinfo=None)),
    (datetime, moment.astimezone(UTC)),
    (date, moment.date()),
    (time, moment.time()),
    (timedelta, timedelta(days=-1, microseconds=1)),
    (Decimal, Decimal("1.10")),
    (Decimal, Decimal("1E+5")),
    (bytes, b"ab"),
    (Color, Color.red),
    (Level, Level.low),
    (Word, Word.yes),
    (set[int], {1, 2}),
    (set[bool], {True}),
    (set[Word], {Word.yes}),
    (set[tuple[int, bool]], {(1, True)}),
    (set[int | str], {1}),
    (frozenset[str], frozenset({"a"})),
    (UUID, UUID(int=7)),
    (Path, Path("/a")),
    (float, 1.0),
    (int, 1),
    (bool, True),
    (int | str, "1"),
    (float | int, 1),
    (int | float, 1.0),
    (Order, Order(Decimal("1.10"), moment, [(1, "a")])),
    (list[Order | None], [None, Order(Decimal(0), moment, [])]),
    (dict[str, Any], {"a": [1, 1.0, True, None, "x", {}]}),
]


@agent
async def untyped(value: Any) -> Any:
    return value


@agent
async def ordered(order: Order, color: Color, ids: set[UUID], raw: bytes, at: datetime | None = None) -> Order:
    assert (type(order), type(color), type(ids), type(raw)) == (Order, Color, set, bytes)
    return order


def same(a: Any, b: Any) -> bool:
    """Equal, and of the same type all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(k, m) and same(a[k], b[m]) for k, m in zip(a, b, strict=True))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (set, frozenset)):
        return len(a) == len(b) and all(any(same(one, other) for other in b) for one in a)
    if isinstance(a, (LooseData, Loose)):
        return same(a.inside, b.inside)
    return bool(a == b)


def holds_or_is_refused(value: Any, schema: Any) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(schema)
    try:
        text = codec.encode(value, adapter)
    except PayloadInvalid:
        return
    back = codec.decode(text, adapter)
    assert same(value, back), f"{value!r} under {schema} came back as {back!r}"


@pytest.mark.parametrize("value", values, ids=lambda v: f"{type(v).__name__} {ascii(v)[:20]}")
def test_a_value_without_a_schema_comes_back_the_same_or_is_refused(value: Any) -> None:
    holds_or_is_refused(value, Any)
    holds_or_is_refused([{"deep": value}], Any)
    holds_or_is_refused(value, object)


@pytest.mark.parametrize("value", values, ids=lambda v: f"{type(v).__name__} {ascii(v)[:20]}")
def test_a_value_under_a_schema_of_another_type_comes_back_the_same_or_is_refused(value: Any) -> None:
    for schema in (
        int,
        str,
        float,
        bool,
        list,
        dict,
        tuple,
        set,
        set[int],
        set[str],
        set[tuple[Any, ...]],
        frozenset[frozenset[str]],
        set[Color],
        bytes,
        datetime,
        date,
        Decimal,
        Color,
        list[int],
        dict[str, Any],
        int | str | None,
    ):
        holds_or_is_refused(value, schema)


@pytest.mark.parametrize("value", loose_values, ids=lambda v: f"{type(v).__name__} {ascii(v)[:20]}")
@pytest.mark.parametrize("holder", [Loose, LooseData])
def test_a_value_in_an_untyped_field_comes_back_the_same_or_is_refused(holder: type[Any], value: Any) -> None:
    holds_or_is_refused(holder(inside=value), holder)
    holds_or_is_refused(holder(inside=[value]), holder)


@pytest.mark.parametrize(("schema", "value"), schemas, ids=lambda x: ascii(x)[:30])
def test_an_annotated_value_comes_back_equal_and_of_the_same_type(schema: Any, value: Any) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(schema)
    assert same(value, codec.decode(codec.encode(value, adapter), adapter))


@pytest.mark.parametrize("value", [(1, 2), {1: "a"}, moment, Decimal(1), b"a", Color.red, {1}, UUID(int=7)], ids=ascii)
async def test_what_would_change_is_refused_when_it_is_sent(value: Any, client: agentrt.Client, sql: Sql) -> None:
    for address in (untyped, agentrt.to("elsewhere")):
        with pytest.raises(PayloadInvalid) as refused:
            await address.send(value=[value])
        assert refused.value.path.startswith(f"{address.name}.value[0]")
    assert await sql.value("select count(*) from agentrt.all_jobs") == 0


async def test_what_was_sent_is_what_the_agent_gets_and_what_it_returns_is_what_comes_back(
    database: str, client: agentrt.Client
) -> None:
    order = Order(Decimal("1.10"), moment, [(1, "a")])
    async with supervising(database, ordered, untyped, poll_s=600):
        back = await ordered.options(timeout_s=10).ask(order, Color.red, {UUID(int=7)}, b"ab", at=moment)
        assert same(back, order)
        assert str(back.amount) == "1.10"
        plain = {"b": [1, 1.0, True, None, "é😀", {}], "a": 1e17, "": -0.0}
        assert same(await untyped.options(timeout_s=10).ask(plain), plain)


async def test_a_result_that_would_change_fails_the_job_in_one_line(
    database: str, client: agentrt.Client, sql: Sql
) -> None:
    @agent
    async def tuples() -> Any:
        return (1, 2)

    async with supervising(database, tuples, poll_s=600):
        job = await tuples.send()
        assert "tuple would come back as list" in await failed_at_once(sql, job.id, "unstorable")


async def test_rows_by_plain_sql_and_from_the_command_line_are_held_to_the_same_schema(
    database: str, start: Start, client: agentrt.Client, sql: Sql, tmp_path: Path
) -> None:
    good = {
        "order": {"amount": "1.10", "at": "2026-11-29T12:30:15+05:30", "lines": [[1, "a"]]},
        "color": "r",
        "ids": [],
        "raw": "ab",
    }
    (tmp_path / "mine.py").write_text("from tests.cases.test_c45 import ordered\n")
    environ = {"PYTHONPATH": str(Path(__file__).parents[2])}
    async with supervising(database, ordered, poll_s=600):
        await sql.until(await insert(sql, "ordered", json.dumps(good)), "succeeded", within_s=15)
        for bad in (
            {"color": "blue"},
            {"ids": ["x"]},
            {"raw": 5},
            {"at": "yesterday"},
            {"at": 5.5e300},
            {"order": {"amount": "1"}},
        ):
            error = await failed_at_once(sql, await insert(sql, "ordered", json.dumps(good | bad)), "invalid")
            assert f"ordered.{next(iter(bad))}" in error
        await refused_by_the_command_line(start, sql, "ordered", "--from", "mine", json.dumps(good | {"color": "blue"}))
        command = start("send", "ordered", "--from", "mine", "--wait", json.dumps(good), name="send", environ=environ)
        assert await command.ended() == 0, command.log()
