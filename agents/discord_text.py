"""Texts for Discord: whether one is blank, and how a long one becomes messages that Discord accepts.

A message holds 2,000 characters. Discord's servers count code points, its own client counts UTF-16 units
(discord/discord-api-docs#1315); a part is measured in UTF-16 units, the larger of the two, so it fits either way.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

message_units_max = 2_000
_fence_mark = re.compile(r"`{3,}")
_fence_language = re.compile(r"[A-Za-z0-9_+\-.#]{0,40}\n")
_closing = "\n```"
_markdown = re.compile(r"[\\`*_~|<>\[\]()#@:-]")
_grapheme_back_max = 64  # code points a cut moves back to spare a cluster; a longer one is noise, and is cut

# Characters that draw nothing, or a blank, although Unicode does not call them spaces or format characters.
_invisible = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0") | {chr(c) for c in range(0xFE00, 0xFE10)}


def is_blank(text: str) -> bool:
    """Whether a reader would see nothing: there are only spaces, control and zero-width characters, or none at all."""
    return all(c in _invisible or unicodedata.category(c) in ("Zs", "Zl", "Zp", "Cc", "Cf") for c in text)


def units(text: str) -> int:
    """The length of `text` in UTF-16 units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def literal(text: str) -> str:
    """`text` on one line, with what would be Markdown or a mention escaped."""
    return _markdown.sub(r"\\\g<0>", " ".join(text.split()))


def closed(text: str) -> str:
    """`text` with its last code block closed, so that what comes after it is none of its code."""
    return text if len(_fence_mark.findall(text)) % 2 == 0 else text + _closing


def split(text: str, units_max: int = message_units_max) -> list[str]:
    """Cut `text` into messages of at most `units_max` UTF-16 units: between paragraphs, else lines, else words.

    Nothing but white space at a cut is lost. A code block that is cut is closed, and opened again with its language in
    the next part. A cut never falls into a surrogate pair, an emoji sequence or a letter with its accents. No part is
    blank. A text that fits is returned as it is.
    """
    if units(text) <= units_max:
        return [text]
    return list(_parts(text.strip("\r\n"), units_max))


@dataclass(frozen=True, slots=True)
class _Block:
    """A code block, as positions: its ``` at `start`, its code from `code`, the closing ``` from `close` to `end`."""

    start: int
    code: int
    close: int
    end: int
    language: str


def _parts(text: str, units_max: int) -> Iterator[str]:
    blocks = _blocks(text)
    at, reopen = 0, ""
    while at < len(text):
        room = units_max - units(reopen)
        cut = _cut(text, at, _fitting(text, at, room), blocks)
        if _open_block(blocks, cut) is not None:
            cut = _cut(text, at, _fitting(text, at, room - len(_closing)), blocks)
        part, at, next_reopen = _at_cut(text, at, cut, blocks)
        if not is_blank(part):
            yield reopen + part
        reopen = next_reopen


def _at_cut(text: str, at: int, cut: int, blocks: list[_Block]) -> tuple[str, int, str]:
    """The part that ends at `cut`, where the next begins, and what opens a cut code block again."""
    head = text[at:cut]
    block = _open_block(blocks, cut)
    if block is None:
        return (head.rstrip() if cut < len(text) else head), _skip_space(text, cut), ""
    at_line_end = text[cut : cut + 1] == "\n"
    after = cut + 1 if at_line_end else cut
    if not text[after : block.close].strip("\n"):  # Only the closing mark is left: ours stands for it.
        return head.rstrip("\n") + _closing, _skip_space(text, block.end), ""
    return (head if at_line_end else head.removesuffix("\n")) + _closing, after, f"```{block.language}\n"


def _cut(text: str, at: int, window: int, blocks: list[_Block]) -> int:
    """Where to end a part that may reach to `window`: the best boundary of its second half, else any, else hard."""
    if window == len(text):
        return window
    quarter, half = at + (window - at) // 4, at + (window - at) // 2
    block = _open_block(blocks, window)
    if block is not None and block.start > at:
        fits_whole_into_the_next = block.end - block.start < window - at
        if window <= block.code or (fits_whole_into_the_next and block.start > quarter):
            return block.start
    for boundary, lowest in (("\n\n", half), ("\n", half), (" ", half), ("\n", at), (" ", at)):
        end = window + len(boundary)
        while (cut := text.rfind(boundary, lowest + 1, end)) > 0:
            if (around := _open_block(blocks, cut)) is None or cut > max(at, around.code):
                return cut
            end = cut + len(boundary) - 1  # That would leave the first mark of a code block without code.
    if block is not None and block.close < window:
        return block.close  # The closing ``` may not be torn.
    return _between_clusters(text, block.code if block is not None and at < block.code else at, window)


def _between_clusters(text: str, at: int, cut: int) -> int:
    """The last place at or before `cut` that does not break what is drawn as one character."""
    for place in range(cut, max(at, cut - _grapheme_back_max), -1):
        if place >= len(text) or not _joined(text, at, place):
            return place
    return cut


def _joined(text: str, at: int, place: int) -> bool:
    before, after = text[place - 1], text[place]
    if after == "\u200d" or before == "\u200d" or unicodedata.category(after) in ("Mn", "Mc", "Me"):
        return True
    if "\U0001f3fb" <= after <= "\U0001f3ff" or "\U000e0020" <= after <= "\U000e007f":  # skin tones; flag tags
        return True
    if _is_flag_letter(before) and _is_flag_letter(after):  # A flag is a pair: count what stands before.
        letters = next((n for n in range(place - at) if not _is_flag_letter(text[place - 1 - n])), place - at)
        return letters % 2 == 1
    return before == "\r" and after == "\n"


def _is_flag_letter(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _fitting(text: str, at: int, units_max: int) -> int:
    """The end of the longest piece from `at` of at most `units_max` units."""
    end = min(len(text), at + units_max)
    while (over := units(text[at:end]) - units_max) > 0:
        end -= (over + 1) // 2  # Each code point has at most two units.
    return end


def _skip_space(text: str, at: int) -> int:
    """Past the white space at a cut, but not past the indentation of the next line."""
    end = at
    while end < len(text) and text[end].isspace():
        end += 1
    line = text.rfind("\n", at, end)
    return line + 1 if line >= 0 and end < len(text) else end


def _blocks(text: str) -> list[_Block]:
    """The code blocks of `text` in order; one that is never closed reaches to its end."""
    marks = list(_fence_mark.finditer(text))
    blocks = []
    for number in range(0, len(marks), 2):
        first = marks[number]
        language = _fence_language.match(text, first.end())
        code = language.end() if language else first.end()
        close, end = marks[number + 1].span() if number + 1 < len(marks) else (len(text), len(text) + 1)
        if code > close:  # "```" directly followed by "```": no code between
            code, language = first.end(), None
        blocks.append(_Block(first.start(), code, close, end, language.group().strip() if language else ""))
    return blocks


def _open_block(blocks: list[_Block], place: int) -> _Block | None:
    """The code block that `place` is in, if any."""
    index = bisect_right(blocks, place, key=lambda b: b.start) - 1
    return blocks[index] if index >= 0 and blocks[index].start < place < blocks[index].end else None
