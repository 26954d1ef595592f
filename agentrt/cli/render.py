"""What the commands print: tables for people, JSON for pipes. What the database holds is made safe for a terminal first."""

from __future__ import annotations

import json
import math
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from io import StringIO, TextIOWrapper

import click
from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.table import Table
from rich.text import Text

from agentrt import codec
from agentrt.config import redact
from agentrt.model import JobRow, State

_json_colours: Callable[[str | Text], Text] = JSONHighlighter()
_pipe_columns = 100_000  # a pipe has no width: nothing is cut there
_name_columns = 32
_integer_digits_max = 4_000  # Python converts no more than 4,300
_turns_text_around = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_state_styles = {
    State.scheduled: "cyan",
    State.ready: "blue",
    State.blocked: "magenta",
    State.running: "yellow",
    State.parked: "cyan",
    State.succeeded: "green",
    State.failed: "red",
    State.cancelled: "bright_black",
}

# ------------------------------------------------------------------ ways out


def print_json(value: object) -> None:
    """One JSON value on standard output, always in UTF-8; indented on a terminal, one line in a pipe."""
    click.echo(json_text(value, indent=2 if sys.stdout.isatty() else None).encode())


def print_table(table: Table) -> None:
    """A table, coloured and cut to the width of a terminal; in a pipe plain and whole."""
    console = _console()
    if console.is_terminal:
        console.print(table)
        return
    for column in table.columns:
        column.max_width = None
    text = StringIO()
    Console(file=text, width=_pipe_columns, color_system=None).print(table)
    console.file.write("".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines()))
    console.file.flush()


def print_text(text: Text | str) -> None:
    """A text that may have several lines and colours; never cut."""
    _console().print(text, soft_wrap=True, markup=False, highlight=False)


def print_lines(lines: Iterable[Text]) -> None:
    """A drawing: each line cut to the width of a terminal; in a pipe plain and whole."""
    console = _console()
    for line in lines:
        if console.is_terminal:
            console.print(line, no_wrap=True, overflow="ellipsis", markup=False, highlight=False)
        else:
            console.print(line, soft_wrap=True, markup=False, highlight=False)


def complain(text: str) -> None:
    """A line on standard error, as errors are shown."""
    click.echo(f"agentrt: {plain(redact(text))}", err=True)


def _console() -> Console:
    # A standard output that cannot show a character (LANG=C, an old code page) gets its escape instead of an exception.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    return Console()


# ------------------------------------------------------------------ parts


def table(*headers: str, right: Collection[str] = (), last_is_cut: bool = True) -> Table:
    """An empty table without lines. On a narrow terminal the last column gives way first when `last_is_cut`."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False)
    for header in headers:
        gives_way = last_is_cut and header == headers[-1]
        made.add_column(
            header,
            justify="right" if header in right else "left",
            no_wrap=not gives_way,
            overflow="ellipsis",
            max_width=None if gives_way else _name_columns,
        )
    return made


def cell(value: object, style: str = "") -> Text:
    """One line in a table; nothing is shown as `-`."""
    text = "" if value is None else plain(str(value))
    return Text(text or "-", style=style if text else "bright_black", no_wrap=True, overflow="ellipsis")


def state_cell(state: str) -> Text:
    return cell(state, _state_styles.get(State(state), ""))


def heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def json_block(text: str) -> Text:
    """A stored JSON text, indented and coloured."""
    return _json_colours(Text(block(json_text(json_value(text), indent=2))))


def plain(text: str) -> str:
    """`text` in one line, with what would move the cursor or the direction of a terminal spelled out."""
    return block(" ".join(text.split()))


def block(text: str) -> str:
    """As `plain`, but line ends and tabs stay."""
    if text.isprintable() and text.isascii():
        return text
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if character in "\n\t":
        return character
    if unicodedata.category(character) in ("Cc", "Cs") or character in _turns_text_around:
        return f"\\x{ord(character):02x}" if ord(character) < 0x100 else f"\\u{ord(character):04x}"
    return character


def duration(seconds: float, unit_gap: str = " ") -> str:
    """A length of time in one number and unit: `3.2 s`, `45 s`, `12 min`, `5 h`, `9 d`."""
    seconds = max(0.0, seconds)
    if not math.isfinite(seconds):
        return "∞"
    if seconds < 0.0995:
        return f"{seconds * 1000:.{1 if seconds < 0.00995 else 0}f}{unit_gap}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}{unit_gap}s"
    for size, limit, unit in ((1, 120, "s"), (60, 120, "min"), (3600, 48, "h")):
        if seconds < limit * size:
            return f"{seconds / size:.0f}{unit_gap}{unit}"
    return f"{seconds / 86400:.0f}{unit_gap}d"


def moment(when: datetime) -> str:
    """A time of this machine's zone, to the second."""
    if when.tzinfo is None:  # so the driver hands out the two infinities of a timestamptz
        return "infinity" if when.year > 1 else "-infinity"
    return when.astimezone().strftime("%Y-%m-%d %H:%M:%S %z")


def seconds(start: datetime, end: datetime) -> float:
    if start.tzinfo is None or end.tzinfo is None:  # one is an infinity of the database, see `moment`
        return math.inf
    return (end - start).total_seconds()


def since(then: datetime | None, now: datetime, unit_gap: str = " ") -> str:
    return "-" if then is None else duration(seconds(then, now), unit_gap)


def with_age(when: datetime | None, now: datetime) -> str | None:
    if when is None or when.tzinfo is None:
        return None if when is None else moment(when)
    age_s = seconds(when, now)
    distance = f"{duration(age_s)} ago" if age_s >= 0 else f"in {duration(-age_s)}"
    return f"{moment(when)} ({distance})"


def attempts(row: JobRow, of: str) -> str:
    most = row["max_attempts"]
    return f"{row['attempt_count']}{of}{most}" if most is not None else str(row["attempt_count"])


def spent(usd: Decimal | None, tokens: int | None) -> str:
    """`0.25 USD, 1,200 tokens`; empty when nothing was spent."""
    parts = [f"{usd.normalize():f} USD"] if usd else []
    return ", ".join([*parts, *([f"{tokens:,} tokens"] if tokens else [])])


# ------------------------------------------------------------------ JSON


def json_text(value: object, indent: int | None = None) -> str:
    """JSON of whatever a row holds.

    Not orjson, which refuses what plain SQL may have stored: integers beyond 64 bits and lone surrogates.
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=_as_text)
    return codec.storable_text(text, sys.maxsize)  # its spelling of a lone surrogate is JSON again within the quotes


def json_value(text: str) -> object:
    """The value of a stored JSON text; a number that no machine number holds stays text."""
    try:
        value: object = json.loads(text, parse_int=_number(int), parse_float=_number(float))
    except (ValueError, RecursionError):
        return text
    return value


def _number(convert: Callable[[str], float]) -> Callable[[str], float | str]:
    def number(digits: str) -> float | str:
        value = convert(digits) if len(digits) <= _integer_digits_max else math.inf
        return digits if value in (math.inf, -math.inf) else value

    return number


def _as_text(value: object) -> str | float:
    if isinstance(value, Decimal):  # money, whose digits a float holds as far as anybody looks
        return float(value)
    return value.isoformat() if isinstance(value, datetime) else str(value)


_renamed = {"job_type": "agent", "attempt_count": "attempt", "owner_id": "supervisor"}


def job_fields(row: JobRow) -> dict[str, object]:
    """A row of `all_jobs` in agentrt's words, with payload and result as values."""
    fields: dict[str, object] = {}
    for name, value in row.items():
        if name in ("payload", "result") and value is not None:
            fields[name] = json_value(value)
        elif name not in ("status", "fence"):
            fields[_renamed.get(name, name)] = value
    return fields


def rows_without(rows: Sequence[Mapping[str, object]], *names: str) -> list[dict[str, object]]:
    """Rows for JSON, without the columns that mean nothing outside of the runtime."""
    return [{name: value for name, value in row.items() if name not in names} for row in rows]
