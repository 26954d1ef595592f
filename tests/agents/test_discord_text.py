"""How texts are cut for Discord: nothing lost, nothing too long, nothing torn."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.agents.discord_text import is_blank, message_units_max, split, units

_fence = re.compile(r"`{3,}")


def visible(text: str) -> str:
    return "".join(c for c in _fence.sub("", text) if not is_blank(c))


def pieces() -> st.SearchStrategy[str]:
    words = st.sampled_from(
        ["otter", " ", "\n", "\n\n", "\n    ", "🦦", "👩‍🚀", "👍🏽", "🇫🇮", "é", "x" * 70, "、", "\u200b"]
    )
    fences = st.sampled_from(["```", "```python\n", "\n```\n", "````", "```\n```", "`"])
    return st.lists(st.one_of(words, words, words, words, fences), max_size=120).map("".join)


@pytest.mark.parametrize("text", ["a" * 1_999, "a" * 2_000, "```\n" + "a" * 1_900 + "\n```", "  kept as it is \n"])
def test_a_text_that_fits_is_one_message_as_it_is(text: str) -> None:
    assert split(text) == [text]


@pytest.mark.parametrize(
    "text", ["a" * 2_001, "a" * 9_000, "🦦" * 2_000, "🦦" * 1_001, "wörd " * 1_800, "line\n" * 3_000]
)
def test_a_long_text_becomes_full_parts_and_loses_only_space_at_the_cuts(text: str) -> None:
    parts = split(text)
    assert all(0 < units(part) <= message_units_max for part in parts)
    assert "".join(parts).replace(" ", "").replace("\n", "") == text.replace(" ", "").replace("\n", "")
    assert len(parts) == -(-units(text.rstrip()) // message_units_max)


def test_characters_outside_of_the_basic_plane_count_twice() -> None:
    assert units("a🦦é") == 4
    assert [len(part) for part in split("🦦" * 2_500)] == [1_000, 1_000, 500]


@settings(max_examples=200)
@given(pieces(), st.integers(120, 400))
def test_every_part_fits_shows_something_and_nothing_visible_is_lost(text: str, units_max: int) -> None:
    parts = split(text, units_max)
    if units(text) > units_max:
        assert all(units(part) <= units_max and not is_blank(part) for part in parts)
        rest = iter(visible("\n".join(parts)))  # All of the text in its order; a language may be repeated in between.
        assert all(c in rest for c in visible(text))


@settings(max_examples=200)
@given(pieces(), st.integers(120, 400))
def test_a_split_never_breaks_a_code_fence(text: str, units_max: int) -> None:
    for part in split(text, units_max) if units(text) > units_max else []:
        assert len(_fence.findall(part)) % 2 == 0, part


def test_a_cut_code_block_is_closed_and_opened_again_with_its_language() -> None:
    code = "\n".join(f"line_{n} = {n}  # 🦦" for n in range(400))
    parts = split(f"Look:\n\n```python\n{code}\n```\nThat was it.")

    assert len(parts) > 3
    assert all(part.startswith("```python\n") for part in parts[1:])
    assert all(part.endswith("\n```") for part in parts[:-1])
    assert parts[-1].endswith("\n```\nThat was it.")
    bodies = [part.partition("```python\n")[2].partition("\n```")[0] for part in parts]
    assert "\n".join(bodies) == code


def test_a_code_block_that_fits_whole_into_a_message_is_not_cut() -> None:
    block = "```sql\n" + "select 1;\n" * 100 + "```"
    assert split("word " * 250 + "\n" + block) == [("word " * 250).rstrip(), block]


@pytest.mark.parametrize("before", range(1_986, 2_001))
def test_a_cut_never_tears_the_first_mark_of_a_code_block(before: int) -> None:
    parts = split("x" * before + "```python\n" + "y" * 5_000 + "\n```")
    assert parts[0] == "x" * before
    assert all(part.startswith("```python\ny") and part.endswith("y\n```") for part in parts[1:])


def test_a_cut_prefers_paragraphs_to_lines_and_lines_to_words() -> None:
    paragraph = "one two three\n" * 80
    assert split(paragraph + "\n" + paragraph) == [paragraph.rstrip(), paragraph.rstrip()]
    first, _ = split("one two three\n" * 160)
    assert first.endswith("three")
    first, _ = split("one two three " * 160)
    assert first.endswith(("one", "two", "three"))


@pytest.mark.parametrize("cluster", ["🇫🇮", "👩‍👩‍👧‍👦", "👍🏽", "e\u0301", "🏴\U000e0067\U000e0062\U000e007f", "🦦"])
def test_a_cut_never_breaks_what_is_drawn_as_one_character(cluster: str) -> None:
    for shift in range(6):
        parts = split("x" * shift + cluster * 1_500)
        assert all(part.lstrip("x") == cluster * (len(part.lstrip("x")) // len(cluster)) for part in parts)
        assert "".join(parts) == "x" * shift + cluster * 1_500


def test_a_cluster_without_end_is_cut_all_the_same() -> None:
    text = "a" + "\u0301" * 5_000
    assert "".join(split(text)) == text


@pytest.mark.parametrize("text", ["", "  \n\t", "\u200b", "\ufeff\u2060", "\u3164", "\u2800 \u00ad", "\u115f\ufe0f"])
def test_what_shows_nothing_is_blank(text: str) -> None:
    assert is_blank(text)


@pytest.mark.parametrize("text", [".", "🦦", "\u200bx", "é", "```", "\U000f0000"])
def test_what_shows_something_is_not_blank(text: str) -> None:
    assert not is_blank(text), unicodedata.name(text[-1], "private")
