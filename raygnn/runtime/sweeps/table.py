"""Trials in the order of their best validation."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raygnn.config.source import to_plain

_SHOWN_ERROR = 160  # characters of a failed trial's error in the table


@dataclass(frozen=True)
class TrialRow:
    """The result of one trial.

    Attributes:
        values: by dotted path.
        status: finished | stopped early | failed | unfinished.
        best: best value of the metric over all validations; None without any.
        num_validations: that the trial has done.
        error: its last line, of a failed trial.
    """

    name: str
    values: Mapping[str, Any]
    status: str
    best: float | None
    num_validations: int
    error: str | None = None


def rank(rows: Sequence[TrialRow], mode: str) -> list[TrialRow]:
    """The best trial first; those without a value last."""
    sign = 1.0 if mode == "min" else -1.0
    return sorted(rows, key=lambda row: math.inf if row.best is None else sign * row.best)


def best_value(values: Sequence[float | None], mode: str) -> float | None:
    """The least or greatest of the finite values."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return None
    return min(finite) if mode == "min" else max(finite)


def table(rows: Sequence[TrialRow], metric: str) -> list[str]:
    """Ranked rows as lines of aligned columns."""
    if not rows:
        return []
    paths = list(rows[0].values)
    cells = [["rank", "trial", metric, "validations", "status", *paths]]
    for number, row in enumerate(rows, 1):
        best = "-" if row.best is None else f"{row.best:.5g}"
        status = row.status if row.error is None else f"{row.status}: {row.error[:_SHOWN_ERROR]}"
        texts = [_cell(row.values[path]) for path in paths]
        cells.append([str(number), row.name, best, str(row.num_validations), status, *texts])
    # The status comes last: an error is longer than any column.
    cells = [[*line[:4], *line[5:], line[4]] for line in cells]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]


def as_json(rows: Sequence[TrialRow], metric: str, mode: str) -> str:
    """The ranked rows for programs."""
    trials = [
        {
            "trial": row.name,
            "values": to_plain(row.values, [], set()),
            "status": row.status,
            "best": row.best,
            "num_validations": row.num_validations,
            "error": row.error,
        }
        for row in rows
    ]
    return json.dumps({"metric": metric, "mode": mode, "trials": trials}, indent=1) + "\n"


def shown(values: Mapping[str, Any]) -> str:
    """The values of a trial on one line."""
    return "  ".join(f"{path} {_cell(value)}" for path, value in values.items())


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
