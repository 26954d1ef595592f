"""What leaves as JSON comes back equal and of the same type, or is refused with the path to it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NotRequired

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter
from typing_extensions import TypedDict

from agentrt import codec
from agentrt.errors import PayloadInvalid, PayloadTooLarge, UsageError
from agentrt.limits import error_chars_max, payload_bytes_max
from agentrt.schema import arguments_adapter

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))  # what a database stores
plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=30,
)
any_text = st.text(st.characters())
bad_leaves = (
    st.sampled_from(
        [math.nan, math.inf, -math.inf, (1,), {1}, b"a", 1j, Decimal(1), datetime.now(UTC), object(), {1: 2}, {None: 1}]
    )
    | st.integers(min_value=2**63)
    | st.integers(max_value=-(2**63) - 1)
    | texts.map(lambda text: f"{text}\x00")
    | texts.map(lambda text: f"\ud800{text}")
    | texts.map(lambda text: {f"{text}\x00": 1})
    | texts.map(lambda text: {f"{text}\udfff": 1})
)


def same(a: Any, b: Any) -> bool:
    """Equal, of the same type and with the keys in the same order, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return a == b and math.copysign(1, a) == math.copysign(1, b)
    return bool(a == b)


class Node(BaseModel):
    name: str
    children: list[Node] = []


@dataclass
class Point:
    x: float
    y: float


# ------------------------------------------------------------------ the round trip


@given(plain_values)
def test_any_nested_plain_value_comes_back_equal_and_of_the_same_type(value: Any) -> None:
    text = codec.encode(value)
    assert same(codec.decode(text), value)
    assert same(codec.parse(text), value)
    assert same(json.loads(text), value)  # for who reads the table without us
    assert codec.encode(codec.decode(text)) == text


@given(plain_values, bad_leaves, st.lists(st.booleans(), max_size=4))
def test_one_value_that_json_cannot_hold_refuses_the_whole_with_the_path_to_it(
    good: Any, bad: Any, nesting: list[bool]
) -> None:
    value, path = bad, ""
    for as_list in nesting:
        value, path = ([good, value], f"[1]{path}") if as_list else ({"good": good, "in": value}, f".in{path}")
    with pytest.raises(PayloadInvalid) as refused:
        codec.encode(value)
    assert refused.value.path.startswith(f"${path}")
    assert "\x00" not in str(refused.value)
    str(refused.value).encode()


@given(
    st.one_of(plain_values, bad_leaves),
    st.sampled_from([int, float, str, bool, list[int], dict[str, str], Point, datetime, int | None]),
)
def test_under_a_schema_a_value_comes_back_equal_or_is_refused(value: Any, schema: Any) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(schema)
    try:
        text = codec.encode(value, adapter)
    except PayloadInvalid:
        return
    assert codec.decode(text, adapter) == value


class Pair(TypedDict):
    a: float
    b: NotRequired[list[float]]


numbers = st.integers(-(2**64), 2**64) | st.sampled_from([0, 2**53 + 1, 2**60]) | st.booleans() | st.floats()


@given(
    numbers | st.lists(numbers) | st.dictionaries(st.sampled_from(["b", "a", "c"]), numbers | st.lists(numbers)),
    st.sampled_from([int, float, list[float], dict[str, float], Pair]),
)
def test_the_short_way_for_plain_values_gives_the_text_of_the_careful_one(value: Any, schema: Any) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(schema)
    text = codec._encode_plain(value, adapter)
    if text is not None:
        assert text == codec._encode(value, adapter, "$", 1_000_000)


def test_whole_numbers_for_floats_and_fields_in_any_order_take_the_short_way() -> None:
    assert codec._encode_plain({"b": [1, 2.5], "a": 0}, TypeAdapter(Pair)) is not None


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (Node, Node(name="a", children=[Node(name="b")])),
        (Point, Point(1.5, -0.0)),
        (list[Node | None], [None, Node(name="ä")]),
        (dict[str, tuple[int, Point]], {"k": (1, Point(0.1, 1e300))}),
    ],
    ids=["model", "dataclass", "optional models", "nested tuple"],
)
def test_models_and_dataclasses_come_back_as_what_they_were(schema: Any, value: Any) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(schema)
    back = codec.decode(codec.encode(value, adapter), adapter)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_without_a_form_in_json_is_refused_inside_models_too(bad: float) -> None:
    with pytest.raises(PayloadInvalid):
        codec.encode(Point(1, bad), TypeAdapter(Point))


def test_a_value_that_holds_itself_or_is_nested_too_deeply_is_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    for value in (ring, deep):
        with pytest.raises(PayloadInvalid):
            codec.encode(value)
    while isinstance(deep, list):  # taken apart here: its own end would recurse as deeply
        deep = deep.pop()


def test_a_value_just_within_the_size_limit_passes_and_one_beyond_is_refused_with_both_sizes() -> None:
    fits = "x" * (payload_bytes_max - 2)
    assert codec.decode(codec.encode(fits)) == fits
    with pytest.raises(
        PayloadTooLarge, match=f"{payload_bytes_max + 1:,} bytes as JSON; at most {payload_bytes_max:,}"
    ):
        codec.encode(fits + "x")
    with pytest.raises(PayloadTooLarge):
        codec.encode("ä" * (payload_bytes_max // 2))  # bytes count, not characters


# ------------------------------------------------------------------ decoding what others wrote


@pytest.mark.parametrize(
    "text", ["", "{", "nul", "'a'", '{"a": 1,}', "[NaN]", '"\\ud800"', "\ufeff1", "1 2", "[" * 5_000 + "]" * 5_000]
)
def test_a_text_that_is_no_json_is_refused_in_one_line(text: str) -> None:
    for read in (codec.decode, codec.parse):
        with pytest.raises(PayloadInvalid) as refused:
            read(text)
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 300


@pytest.mark.parametrize("digits", ["1" * 30, "-" + "9" * 5_000])
def test_an_integer_of_any_size_that_others_wrote_is_read_exact_or_refused(digits: str) -> None:
    try:
        value = codec.decode(digits)
    except PayloadInvalid:
        return
    assert value == int(digits)


# ------------------------------------------------------------------ texts for people, and the marked form


@given(any_text)
def test_an_error_text_is_always_storable_and_keeps_what_was_storable(text: str) -> None:
    kept = codec.storable_text(text)
    kept.encode()
    assert "\x00" not in kept
    if "\x00" not in text and not any(0xD800 <= ord(c) <= 0xDFFF for c in text):
        assert kept == text


@given(any_text, st.integers(1, 50))
def test_a_cut_text_begins_like_the_whole_one_and_says_how_long_that_was(text: str, chars_max: int) -> None:
    whole = codec.storable_text(text, 10**9)
    cut = codec.storable_text(text, chars_max)
    assert cut[:chars_max] == whole[:chars_max]
    assert (cut == whole) == (len(whole) <= chars_max)
    assert cut == whole or f"{len(whole):,} characters" in cut


def test_a_text_of_exactly_the_limit_is_not_cut() -> None:
    assert codec.storable_text("x" * error_chars_max) == "x" * error_chars_max


@given(
    st.recursive(
        plain_values | bad_leaves, lambda inner: st.lists(inner) | st.dictionaries(any_text | st.integers(), inner)
    )
)
def test_the_marked_form_of_anything_is_storable_json(value: Any) -> None:
    text = codec.marked(value)
    assert len(text) <= payload_bytes_max
    codec.encode(json.loads(text))


@given(plain_values)
def test_the_marked_form_of_what_can_be_stored_is_the_thing_itself(value: Any) -> None:
    long_key = any(len(key) > 200 for key in value) if isinstance(value, dict) else False
    assert long_key or same(json.loads(codec.marked(value)), value)


def test_the_marked_form_of_what_is_too_large_or_too_deep_says_so() -> None:
    assert json.loads(codec.marked("x" * (payload_bytes_max + 1))) == {"$unstorable": "too large"}
    deep: Any = 1
    for _ in range(60):
        deep = [deep]
    assert "nested too deeply" in codec.marked(deep).decode()


def test_a_value_whose_repr_raises_is_described_by_its_type() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise RuntimeError

    assert codec.describe(Shy()) == "<Shy>"
    assert json.loads(codec.marked([1, Shy()])) == [1, {"$unstorable": "<Shy>"}]
    with pytest.raises(PayloadInvalid):
        codec.encode(Shy())


# ------------------------------------------------------------------ schemas of agents


def test_the_schema_of_a_function_checks_names_types_and_defaults() -> None:
    def fn(a: int, b: str = "x", *, c: list[float] | None = None, d: Any = None) -> None: ...

    adapter = arguments_adapter(fn, "fn")
    assert codec.decode(codec.encode({"a": 1}, adapter), adapter) == {"a": 1}
    assert codec.decode(codec.encode({"a": 1, "c": [1.5], "d": {"x": [True]}}, adapter), adapter) == {
        "a": 1,
        "c": [1.5],
        "d": {"x": [True]},
    }
    for wrong in (
        {},
        {"a": "1"},
        {"a": True},
        {"a": 1, "b": None},
        {"a": 1, "more": 1},
        {"a": 1, "c": ["x"]},
        {"a": 1, "d": (1,)},
        [1],
        None,
    ):
        with pytest.raises(PayloadInvalid):
            codec.encode(wrong, adapter)


@pytest.mark.parametrize("source", ["*rest", "**more", "a, /", "a, *rest"])
def test_a_parameter_that_a_message_cannot_name_is_refused(source: str) -> None:
    names: dict[str, Any] = {}
    exec(f"def fn({source}): ...", names)
    with pytest.raises(UsageError, match="cannot be part of a message"):
        arguments_adapter(names["fn"], "fn")


def test_an_annotation_that_cannot_be_read_or_is_no_schema_is_refused_with_the_agents_name() -> None:
    def unreadable(a: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037 - the fault under test

    class Socket: ...

    def no_schema(a: int) -> None: ...

    no_schema.__annotations__["a"] = Socket
    for fn in (unreadable, no_schema):
        with pytest.raises(UsageError, match=fn.__name__):
            arguments_adapter(fn, fn.__name__)
