"""Tables and charts of the trials of a sweep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raygnn.outputs.html_page import Chart, Series, show
from raygnn.outputs.report_errors import PageTable

_WIDE = 50  # ratio of largest to smallest value, above which the axis is logarithmic


def sweep_tables(sweep: Mapping[str, Any]) -> dict[str, PageTable]:
    paths = _sweep_paths(sweep)
    heads = ("trial", sweep["metric"], "validations", "status", *paths)
    rows = [
        (
            row["trial"],
            row["best"],
            row["num_validations"],
            row["status"],
            *(shown(row["values"].get(path)) for path in paths),
        )
        for row in sweep["trials"]
    ]
    return {"Trials": (heads, rows)}


def sweep_charts(sweep: Mapping[str, Any]) -> list[Chart]:
    """Parallel coordinates of trials with a value."""
    paths, trials = _sweep_paths(sweep), [row for row in sweep["trials"] if row["best"] is not None]
    if not paths or not trials:
        return []
    columns = {path: [row["values"].get(path) for row in trials] for path in paths}
    columns[sweep["metric"]] = [row["best"] for row in trials]
    return [_parallel_coordinates(columns, [row["trial"] for row in trials])]


def _parallel_coordinates(columns: Mapping[str, Sequence[Any]], trials: Sequence[str]) -> Chart:
    places = {name: _placed(values) for name, values in columns.items()}
    lines, texts = [], []
    for number, trial in enumerate(trials):
        points = [(float(x), places[name][number]) for x, name in enumerate(columns)]
        # the best quarter, the next, the rest
        color = (0, 1, 7, 7)[4 * number // len(trials)]
        lines.append(Series(trial, points, color))
        texts.append([shown(values[number]) for values in columns.values()])
    names = [f"{name.rsplit('.', 1)[-1]} ({_range(values)})" for name, values in columns.items()]
    title = "Trials: the best quarter in the first color, the next in the second"
    return Chart(title, lines, x_label="", x_names=names, texts=texts, wide=True)


def _placed(values: Sequence[Any]) -> list[float]:
    if _are_numbers(values):
        numbers = np.array(values, np.float64)
        if numbers.min() > 0 and numbers.max() > _WIDE * numbers.min():
            numbers = np.log(numbers)
    else:
        order = sorted({shown(value) for value in values})
        numbers = np.array([order.index(shown(value)) for value in values], np.float64)
    spread = numbers.max() - numbers.min()
    placed: list[float] = ((numbers - numbers.min()) / spread if spread else numbers * 0).tolist()
    return placed


def _range(values: Sequence[Any]) -> str:
    if _are_numbers(values):
        return f"{shown(min(values))} to {shown(max(values))}"
    names = sorted({shown(value) for value in values})
    return f"{names[0]} to {names[-1]}"


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        for value in values
    )


def _sweep_paths(sweep: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(path for row in sweep["trials"] for path in row["values"]))


def shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else show(value)
