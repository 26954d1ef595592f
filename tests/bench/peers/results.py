"""What is kept of a run: a JSON line for each peer, metric and case, with every value and its spread."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.peers.measures import Sample


@dataclass(frozen=True, slots=True)
class Values:
    """One number of each repetition."""

    values: list[float]

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        return min(self.values), max(self.values)


@dataclass(frozen=True, slots=True)
class Result:
    """What was seen of a case, or why nothing was (`not_measured`; it stands for all cases)."""

    peer: str
    version: str
    metric: str
    case: str = ""
    numbers: dict[str, Values] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    not_measured: str = ""
    other_cpu: float = 0.0  # cores that anything else used meanwhile, in the worst repetition
    about: dict[str, Any] = field(default_factory=dict)  # of the run: when, where, with what

    def line(self) -> str:
        numbers = {
            name: {"median": _short(seen.median), "min": _short(seen.spread[0]), "max": _short(seen.spread[1]),
                   "values": [_short(value) for value in seen.values]}
            for name, seen in self.numbers.items()
        }  # fmt: skip
        return json.dumps({**asdict(self), "numbers": numbers}, ensure_ascii=False)

    @classmethod
    def from_line(cls, line: str) -> Result:
        entry = json.loads(line)
        entry["numbers"] = {name: Values(seen["values"]) for name, seen in entry["numbers"].items()}
        return cls(**entry)


def gather(samples: Iterable[Sample], **said: Any) -> list[Result]:
    """The samples of all repetitions of one peer's metric, by case."""
    cases: dict[str, list[Sample]] = {}
    for sample in samples:
        cases.setdefault(sample.case, []).append(sample)
    return [
        Result(
            case=case,
            numbers={
                name: Values([sample.numbers[name] for sample in found if name in sample.numbers])
                for name in found[0].numbers
            },
            settings=found[0].settings,
            note="; ".join(sorted({sample.note for sample in found if sample.note})),
            **said,
        )
        for case, found in cases.items()
    ]


def read(path: Path) -> list[Result]:
    """The results of a run."""
    return [Result.from_line(line) for line in path.read_text().splitlines()]


def _short(value: float) -> float:
    return float(f"{value:.5g}")
