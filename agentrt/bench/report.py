"""What a measurement says: figures for programs, the same as a table for people."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import quantiles

Figure = float | int | None


@dataclass(frozen=True, slots=True)
class Report:
    """`figures` by their names, and rows of texts under `columns`; `remarks` say what the table cannot."""

    title: str
    figures: dict[str, Figure]
    rows: list[tuple[str, ...]]
    columns: tuple[str, ...] = ("", "agentrt", "by hand", "ratio")
    remarks: tuple[str, ...] = ()


def compared(label: str, ours: Figure, floor: Figure = None) -> tuple[str, ...]:
    """A row: agentrt's figure, the one by hand, and how much of that the first is."""
    return (label, shown(ours), shown(floor), shown(ratio(ours, floor)))


def ratio(ours: Figure, floor: Figure) -> Figure:
    """None where there is nothing to divide, or nothing to divide by."""
    return round(ours / floor, 3) if ours is not None and floor else None


def shown(value: Figure) -> str:
    """A figure with three or four digits that count."""
    if value is None:
        return "–"
    if isinstance(value, int) or abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def milliseconds(seconds: list[float], percent: int) -> float:
    """A percentile, in milliseconds."""
    return round(quantiles(seconds, n=100, method="inclusive")[percent - 1] * 1000, 3)


def per_second(count: int, seconds: float) -> float:
    return round(count / seconds, 1)
